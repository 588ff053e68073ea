"""Boxes of people: what they are, and how many people they hold."""
