"""Stage 4: finding individual discriminatory instances."""
