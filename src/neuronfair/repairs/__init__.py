"""Stage 8: make a network fairer, by retraining with findings or by its biased neurons, and show what it cost."""
