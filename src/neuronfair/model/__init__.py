"""Stage 2: the model under test."""
