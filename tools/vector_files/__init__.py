"""What tools/make_vectors.py writes, one module per kind of vector."""
