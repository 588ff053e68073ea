"""Stage 8: the paper's repair of a network: retraining with its findings, or turning its biased neurons down."""
