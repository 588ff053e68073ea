"""Stage 6: figures about findings."""
