"""PyIceberg's catalog properties in Java's names, by what they are for: files, Amazon, Azure, databases, REST."""
