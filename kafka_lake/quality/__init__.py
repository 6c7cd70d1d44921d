"""Rules of rows and of commits, evaluated before a commit is published."""
