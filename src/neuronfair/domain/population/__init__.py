"""Realistic records: a model of the people of a data set, and their counterfactual twins."""
