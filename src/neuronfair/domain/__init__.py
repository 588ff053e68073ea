"""Stage 1: what an input may be."""
