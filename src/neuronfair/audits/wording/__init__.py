"""The sentences of an audit."""
