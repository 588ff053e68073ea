"""Stage 8: retraining."""
