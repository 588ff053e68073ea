"""The repair of the paper: retraining a network with its findings; and turning its biased neurons down."""
