"""The experiments of the paper: `python -m experiments` or `neuronfair reproduce` in a checkout repeats them."""
