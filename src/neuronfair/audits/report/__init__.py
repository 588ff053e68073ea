"""What an audit says: a tree of frozen dataclasses that every renderer reads."""
