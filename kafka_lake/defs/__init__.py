"""The deployment of this repository: topics as YAML, resources, and the demo's tables."""
