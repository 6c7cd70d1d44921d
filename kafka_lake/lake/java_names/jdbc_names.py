"""How databases' Java drivers write their properties: PyIceberg's variables and files have them in lower case. Pure.

PyIceberg's `Config` has "Make it lowercase to make it case-insensitive" of a variable's name, and
``_lowercase_dictionary_keys`` of a file's. Java's drivers ignore a property in another case.
"""

from collections.abc import Mapping

from kafka_lake.common.errors import ConfigurationError

_PREFIX = "jdbc."

# Iceberg's own, which are in lower case.
_ICEBERG = ("add-view-support", "init-catalog-tables", "schema-version", "strict-mode")
# https://jdbc.postgresql.org/documentation/use/#connection-parameters
_POSTGRESQL = """
adaptiveFetch adaptiveFetchMaximum adaptiveFetchMinimum allowEncodingChanges ApplicationName assumeMinServerVersion
authenticationPluginClassName autosave binaryTransfer binaryTransferDisable binaryTransferEnable cancelSignalTimeout
channelBinding cleanupSavepoints connectTimeout convertBooleanToNumeric currentSchema databaseMetadataCacheFields
databaseMetadataCacheFieldsMiB defaultRowFetchSize disableColumnSanitiser escapeSyntaxCallMode groupStartupParameters
gssEncMode gsslib gssResponseTimeout gssUseDefaultCreds hideUnprivilegedObjects hostRecheckSeconds jaasApplicationName
jaasLogin kerberosServerName loadBalanceHosts localSocketAddress loggerFile loggerLevel loginTimeout
logServerErrorDetail logUnclosedConnections maxResultBuffer maxSendBufferSize options password preferQueryMode
preparedStatementCacheQueries preparedStatementCacheSizeMiB prepareThreshold protocolVersion quoteReturningIdentifiers
readOnly readOnlyMode receiveBufferSize replication reWriteBatchedInserts sendBufferSize service socketFactory
socketFactoryArg socketTimeout ssl sslcert sslfactory sslfactoryarg sslhostnameverifier sslkey sslmode sslNegotiation
sslpassword sslpasswordcallback sslResponseTimeout sslrootcert sspiServiceClass stringtype targetServerType
tcpKeepAlive tcpNoDelay unknownLength user useSpnego xmlFactoryFactory
"""
# Those of a connection and of its TLS.
# https://dev.mysql.com/doc/connector-j/en/connector-j-reference-configuration-properties.html
_MYSQL = """
allowPublicKeyRetrieval autoReconnect characterEncoding clientCertificateKeyStorePassword clientCertificateKeyStoreType
clientCertificateKeyStoreUrl connectTimeout connectionTimeZone password requireSSL rewriteBatchedStatements
serverTimezone socketTimeout sslMode tcpKeepAlive tcpNoDelay tlsVersions trustCertificateKeyStorePassword
trustCertificateKeyStoreType trustCertificateKeyStoreUrl useSSL useServerPrepStmts user verifyServerCertificate
"""
# https://mariadb.com/docs/connectors/mariadb-connector-j/about-mariadb-connector-j
_MARIADB = """
allowPublicKeyRetrieval connectTimeout connectionTimeZone keyPassword keyStore keyStorePassword keyStoreType password
serverRsaPublicKeyFile serverSslCert socketTimeout sslMode tcpKeepAlive timezone trustStore trustStorePassword
trustStoreType useServerPrepStmts user
"""
_KNOWN = {
    database: {each.lower(): each for each in (*names.split(), *_ICEBERG)}
    for database, names in {
        "postgresql": _POSTGRESQL,
        "mysql": _MYSQL,
        "mariadb": _MARIADB,
    }.items()
}


def jdbc_names(name: str, database: str, properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties of a database's Java driver, as the driver writes them.

    Args:
        name: The catalog's name, for messages.
        database: By SQLAlchemy's name.
        properties: The catalog's; those that begin with ``jdbc.`` are the driver's.

    Returns:
        Those of the driver alone.

    Raises:
        ConfigurationError: If one is in lower case and isn't known in any.

    >>> jdbc_names("lake", "postgresql", {"jdbc.sockettimeout": "30", "jdbc.newProperty": "1", "uri": "x"})
    {'jdbc.socketTimeout': '30', 'jdbc.newProperty': '1'}
    """
    given = {key.removeprefix(_PREFIX): value for key, value in properties.items() if key.startswith(_PREFIX)}
    # SQLite's are lower-case.
    known = _KNOWN.get(database, {each: each for each in given})
    if unknown := [key for key in given if key.lower() not in known and key == key.lower()]:
        raise ConfigurationError(
            f"Catalog {name}: {_PREFIX}{unknown[0]} is no property of {database}'s Java driver that is known here. "
            "PyIceberg makes the names of variables, and those in its file, lower-case; the driver's are not.",
            "Write it among catalog_properties in YAML, with the driver's upper-case letters; or leave it out.",
        )
    return {f"{_PREFIX}{known.get(key.lower(), key)}": value for key, value in given.items()}
