"""Stage 10: what people see of a report: a page, the terminal, JUnit, Markdown."""
