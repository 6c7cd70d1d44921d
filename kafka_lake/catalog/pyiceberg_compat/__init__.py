"""Uses of PyIceberg's private parts, each with what happens without it."""
