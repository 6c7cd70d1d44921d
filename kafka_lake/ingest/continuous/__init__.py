"""Runs that keep on: commit after commit while records come."""
