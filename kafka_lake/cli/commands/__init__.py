"""The commands of ``kafka-lake``. Each imports what it needs inside itself, so that help is instant."""
