"""The sensors, which ask brokers and catalog and request runs."""
