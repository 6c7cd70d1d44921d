"""Uses of PyIceberg's private parts, each with what happens without it or with a version that wasn't tested."""
