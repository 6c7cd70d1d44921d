"""Inputs and results of a run: connections, plan, decoding options, commit."""
