"""What a task that writes reports to the run."""
