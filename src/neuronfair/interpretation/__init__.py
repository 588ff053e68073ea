"""Stage 3: where the bias lives."""
