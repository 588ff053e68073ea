"""Stage 5: runs are folders."""
