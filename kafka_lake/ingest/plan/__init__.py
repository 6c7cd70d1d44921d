"""Plan: the table's position and the topic's watermarks become the exact offsets of one commit. No Spark here."""
