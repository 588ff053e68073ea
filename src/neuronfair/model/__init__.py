"""The model under test, and how its layers react to the sensitive attribute."""
