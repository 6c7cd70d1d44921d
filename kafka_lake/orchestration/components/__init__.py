"""The types of YAML documents."""
