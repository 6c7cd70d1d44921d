"""What this repository's deployment runs: topics as YAML, resources, and the demo's own tables."""
