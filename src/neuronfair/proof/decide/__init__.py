"""The branch-and-bound, on one machine or many, and what contradicts it."""
