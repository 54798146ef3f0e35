"""Every option once, one module for each folder of `conf/`: its type, and its range as metadata. Values and their
documentation are in the YAML files."""
