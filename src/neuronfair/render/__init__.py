"""A report as HTML page, terminal output, Markdown, JUnit and tables."""
