"""Metrics as functions of arrays: rates with intervals, groups, counterfactual effects, diversity."""
