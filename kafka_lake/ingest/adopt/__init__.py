"""Adopt: a table that another writer has filled from a topic is taken over, and resumes where that writer stopped."""
