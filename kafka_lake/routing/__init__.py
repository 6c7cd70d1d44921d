"""Assigns records to the tables of a topic."""
