"""Stage 9: what people see."""
