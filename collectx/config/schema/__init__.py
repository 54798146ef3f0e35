"""Every option once: its type, and its range as metadata. Values and their documentation are in the YAML files."""
