"""Every option, defined once as a field of a dataclass: type, default, text, range and marks."""
