"""What the lost bits do: attention through real page bytes, its certificates, and experiments on both."""
