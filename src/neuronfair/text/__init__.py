"""Fairness tests of models that read text: identity terms are swapped, everything else stays."""
