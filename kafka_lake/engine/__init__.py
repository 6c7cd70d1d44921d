"""The engine: session resource, the jars it needs, the Java it runs on, the Connect server."""
