"""The brokers as Python sees them: connection and security, topics, offsets."""
