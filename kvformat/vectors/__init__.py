"""Answers for any language: sets of inputs with the right codes, scales and pages, and what runs them."""
