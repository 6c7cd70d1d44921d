"""Spark: sessions, the Connect server, Java, jars, and tasks that are sent by value."""
