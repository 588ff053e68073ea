"""Networks read operator by operator, as proofs need them."""
