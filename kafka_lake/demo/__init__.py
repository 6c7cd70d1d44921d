"""The pizza shop: records to try everything with, and the commands that show it."""
