"""What can be proved of a model: for how many records of a domain the decision does, or does not, flip."""
