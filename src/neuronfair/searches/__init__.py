"""Searches for individual discriminatory instances: the loop, the methods, and their results."""
