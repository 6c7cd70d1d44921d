"""Settings of Azure's storage, in Java's names. Pure.

Iceberg's ``AzureProperties`` takes the host from the location of each file: it looks for ``adls.sas-token.`` and that
host, and connects to "https://" and that host. PyIceberg takes the host from properties.

https://iceberg.apache.org/docs/latest/azure/
"""

from urllib.parse import urlsplit

from kafka_lake.common.errors import ConfigurationError
from kafka_lake.lake.java_names.files import AZURE_FILES, files_class

_SERVICE = ("adls.tenant-id", "adls.client-id", "adls.client-secret")
_PYTHON_ONLY = ("adls.credential", "adls.anon")
_SCHEMES = ("adls.blob-storage-scheme", "adls.dfs-storage-scheme")
_HOSTS = ("adls.account-host", "adls.dfs-storage-authority", "adls.blob-storage-authority")
_PUBLIC = ".dfs.core.windows.net"


def azure_properties(name: str, told: dict[str, str]) -> dict[str, str]:
    """Return the properties with those of Azure's storage in Java's names.

    Args:
        name: The catalog's name, for messages.
        told: Its properties.

    Raises:
        ConfigurationError: If one can't be told to Java, or names another account or host than the warehouse's address.
    """
    place = urlsplit(told.get("warehouse", ""))
    at_address = files_class(place.scheme) == AZURE_FILES
    on_azure = at_address or told.get("io-impl") == AZURE_FILES
    if "adls.connection-string" in told:
        # Java gives `adls.connection-string.` and the host to its client as `endpoint`, which is a URL there.
        raise ConfigurationError(
            f"Catalog {name}: Spark can't be told adls.connection-string.",
            "Write its AccountName as adls.account-name, and its AccountKey as adls.account-key.",
        )
    if on_azure:
        _refuse(name, told)
    owner = told.pop("adls.account-name", "")
    hosts = {key: told.pop(key) for key in _HOSTS if key in told}
    host = place.netloc.rpartition("@")[2] if at_address else ""
    if at_address and "@" not in place.netloc:
        # PyIceberg takes such a host for the container, and Java's ADLSLocation for the account's address.
        raise ConfigurationError(
            f"Catalog {name}: its warehouse names no account of Azure's, which Spark takes from there.",
            f"Write it as abfss://CONTAINER@{owner or 'ACCOUNT'}{_PUBLIC}/PATH.",
        )
    if host:
        _agree(name, host, owner, hosts)
    else:
        authority = hosts.get("adls.dfs-storage-authority", _PUBLIC)
        host = _dfs(hosts.get("adls.account-host", "")) or _under(authority, owner)
    if key := told.pop("adls.account-key", None):
        if not host:
            raise ConfigurationError(
                f"Catalog {name}: Spark needs to know the account that adls.account-key is for.",
                "Set adls.account-name.",
            )
        account = owner or host.partition(".")[0]
        told |= {"adls.auth.shared-key.account.name": account, "adls.auth.shared-key.account.key": key}
    if "adls.sas-token" in told and (host or on_azure):
        if not host:
            raise ConfigurationError(
                f"Catalog {name}: Spark needs to know the account that adls.sas-token is for.",
                "Set adls.account-name.",
            )
        told[f"adls.sas-token.{host}"] = told.pop("adls.sas-token")
    return told


def _refuse(name: str, told: dict[str, str]) -> None:
    if service := [key for key in _SERVICE if key in told]:
        raise ConfigurationError(
            f"Catalog {name}: Spark has no property for a service principal, and the catalog has {service[0]}.",
            "Leave it out and set AZURE_TENANT_ID, AZURE_CLIENT_ID and AZURE_CLIENT_SECRET in the environment, which "
            "both engines read.",
        )
    if apart := [key for key in _PYTHON_ONLY if key in told]:
        raise ConfigurationError(
            f"Catalog {name}: Spark can't be told {apart[0]}.",
            "Use adls.account-key, adls.sas-token or adls.token, or the identity of the environment.",
        )
    if plain := [key for key in _SCHEMES if told.pop(key, "https") != "https"]:
        raise ConfigurationError(
            f"Catalog {name}: Spark connects to Azure's storage by https, and the catalog has {plain[0]}.",
            "Leave it out.",
        )


def _agree(name: str, host: str, owner: str, hosts: dict[str, str]) -> None:
    """Make sure that PyIceberg's account and host are those of the warehouse's address, which Java has."""
    account = host.partition(".")[0]
    if owner and owner != account:
        raise ConfigurationError(
            f"Catalog {name}: adls.account-name is {owner}, and the warehouse is in account {account}.",
            "Correct one of them.",
        )
    if others := [key for key, value in hosts.items() if _dfs(_under(value, account)) != _dfs(host)]:
        raise ConfigurationError(
            f"Catalog {name}: {others[0]} is another host than {host}, which Spark takes from the warehouse.",
            "Correct one of them.",
        )
    if not host.endswith(_PUBLIC.removeprefix(".dfs")) and not hosts:
        raise ConfigurationError(
            f"Catalog {name}: PyIceberg would look for account {account} in the public cloud, Spark at {host}.",
            f"Set adls.account-host to {_blob(host)}; or, without adlfs, adls.dfs-storage-authority and "
            "adls.blob-storage-authority.",
        )


def _under(authority: str, account: str) -> str:
    """Return the host of an account, empty without one; an authority that begins with a dot is what accounts are under.

    >>> _under(".dfs.core.windows.net", "acme"), _under("storage.acme.com", ""), _under(".dfs.core.windows.net", "")
    ('acme.dfs.core.windows.net', 'storage.acme.com', '')
    """
    if not authority.startswith("."):
        return authority
    return f"{account}{authority}" if account else ""


def _dfs(host: str) -> str:
    return host.replace(".blob.", ".dfs.", 1)


def _blob(host: str) -> str:
    return host.replace(".dfs.", ".blob.", 1)
