"""Realistic records: a model of a data set, and counterfactual twins."""
