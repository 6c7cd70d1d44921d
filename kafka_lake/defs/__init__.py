"""What this deployment runs: topics as YAML, resources, and the demo's own gold table."""
