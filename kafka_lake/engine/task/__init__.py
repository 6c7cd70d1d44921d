"""Runs in Spark's Python workers, where it is sent by value. Imports only other packages named ``task``."""
