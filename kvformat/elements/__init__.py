"""What one code means: element formats as data, the codecs that run on them, and the slow twin that checks them."""
