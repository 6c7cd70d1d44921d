"""The settings of documents as nested models, from which the YAML schema and the reference derive."""
