"""Stage 9: a search for less discriminatory alternatives to a model, judged on records that played no part in it."""
