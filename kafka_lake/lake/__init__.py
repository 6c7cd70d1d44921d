"""The table side: catalog, schema rules (pure), positions, branches."""
