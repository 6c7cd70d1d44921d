"""Which settings are secret, by their names: one list for messages, pages, Spark's logs and its UI. Pure."""

SECRET_NAME = (
    r"password|passphrase|secret|token|credential|cookie|jaas|authorization|user\.info"
    r"|(?:access|account|api|decryption|encryption|keystore|private|sse|subscription)[._-]?key|connection[._-]?string"
)
"""Regular expression, for Python and for Java, that finds something in lower-case names of secret settings."""

SECRET_ADDRESS = r"://[^\s/@:]*:[^\s@]*@"
"""Regular expression that finds something in an address that has a password in it."""
