"""The settings of documents: nested models; the YAML schema and the reference derive from them."""
