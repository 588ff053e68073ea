"""Images, on the same engine, store and page as tables."""
