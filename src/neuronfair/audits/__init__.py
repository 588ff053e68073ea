"""The verdict: one audit of a model, in figures, checked against limits, past findings and an earlier audit."""
