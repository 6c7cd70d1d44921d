"""The settings: nested models, each declared once; YAML, its JSON schema and the reference derive from them."""
