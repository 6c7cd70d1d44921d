"""Settings of Azure's storage, in Java's names. Pure.

https://iceberg.apache.org/docs/latest/azure/
"""

from urllib.parse import urlsplit

from kafka_lake.common.errors import ConfigurationError
from kafka_lake.lake.java_names.files import AZURE_FILES, files_class

_SERVICE = ("adls.tenant-id", "adls.client-id", "adls.client-secret")


def azure_properties(name: str, told: dict[str, str]) -> dict[str, str]:
    """Return the properties with those of Azure's storage in Java's names.

    https://iceberg.apache.org/docs/latest/azure/
    """
    on_azure = AZURE_FILES in (told.get("io-impl"), files_class(urlsplit(told.get("warehouse", "")).scheme))
    if on_azure and (service := [key for key in _SERVICE if key in told]):
        raise ConfigurationError(
            f"Catalog {name}: Spark has no property for a service principal, and the catalog has {service[0]}.",
            "Leave it out and set AZURE_TENANT_ID, AZURE_CLIENT_ID and AZURE_CLIENT_SECRET in the environment, which "
            "both engines read.",
        )
    account = told.pop("adls.account-name", "")
    if key := told.pop("adls.account-key", None):
        told |= {"adls.auth.shared-key.account.name": account, "adls.auth.shared-key.account.key": key}
    for secret in ("adls.sas-token", "adls.connection-string"):
        if secret in told:
            value = told.pop(secret)
            owner = account or dict(part.partition("=")[::2] for part in value.split(";")).get("AccountName", "")
            if not owner and on_azure:
                raise ConfigurationError(
                    f"Catalog {name}: Spark needs to know the account that {secret} is for.", "Set adls.account-name."
                )
            told[f"{secret}.{owner}.dfs.core.windows.net" if owner else secret] = value
    return told
