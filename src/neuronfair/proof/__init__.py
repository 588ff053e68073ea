"""What can be proved of a model: for how many people of a domain the decision does, or does not, flip."""
