"""Bounds of a model over boxes of records."""
