"""What a run is given and what it returns: connections, plan, decoding options, commit."""
