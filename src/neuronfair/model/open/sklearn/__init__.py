"""Fitted scikit-learn estimators and pipelines."""
