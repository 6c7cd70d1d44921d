"""What every package may use and that uses none of them: errors, durations, paths, files, processes."""
