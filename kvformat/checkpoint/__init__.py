"""The K and V scales of a checkpoint: which are there, which of them an engine loads, and better ones."""
