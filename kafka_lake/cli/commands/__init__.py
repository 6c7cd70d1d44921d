"""The commands of ``kafka-lake``, one module each. A module is imported when its command is called."""
