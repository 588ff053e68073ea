"""Thresholds, baselines and regression sets: what makes a build fail."""
