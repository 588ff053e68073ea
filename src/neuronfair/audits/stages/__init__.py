"""The stages of an audit: each measures one thing and returns a part of the report."""
