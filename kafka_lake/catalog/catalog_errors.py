"""Errors of catalog clients for users: one sentence with the catalog's address, and what to do next."""

import re
from collections.abc import Iterator, Mapping
from urllib.parse import parse_qsl, unquote

import requests
from pydantic import ValidationError
from pyiceberg import exceptions as iceberg
from sqlalchemy import exc as sql

from kafka_lake.catalog.backends import BACKENDS
from kafka_lake.common.environment import catalog_variable
from kafka_lake.common.logs import SECRET_NAME
from kafka_lake.errors import CatalogError, CatalogRefusedError, ConfigurationError, KafkaLakeError

_LENGTH = 200

_NO_ADDRESS = (
    sql.ArgumentError,
    requests.exceptions.InvalidURL,
    requests.exceptions.InvalidSchema,
    requests.exceptions.MissingSchema,
)
_REFUSED = (
    iceberg.UnauthorizedError,
    iceberg.ForbiddenError,
    iceberg.OAuthError,
    iceberg.AuthorizationExpiredError,
)
_NO_ANSWER = (
    iceberg.ServerError,
    iceberg.ServiceUnavailableError,
    iceberg.TooManyRequestsError,
    requests.exceptions.ConnectionError,
    requests.exceptions.Timeout,
    sql.OperationalError,
    sql.TimeoutError,
)
# The server isn't a catalog, or the catalog is at another path.
_NO_CATALOG = (iceberg.RESTError, requests.exceptions.JSONDecodeError, requests.exceptions.HTTPError, ValidationError)

# Of botocore, which is an extra.
_AMAZON = {
    "NoRegionError": ("no region", "CLIENT__REGION", "AWS_DEFAULT_REGION (and AWS_REGION, for Spark)"),
    "NoCredentialsError": ("no keys", "CLIENT__ACCESS_KEY_ID and CLIENT__SECRET_ACCESS_KEY", "those of AWS_PROFILE"),
}

_SECRET = re.compile(SECRET_NAME)
_SQLITE_FILE = re.compile(r"unable to open database file|readonly database|file is not a database")


def without_secrets(uri: str) -> str:
    """Return a catalog's address without user, password and query.

    >>> without_secrets("postgresql+psycopg2://bob:a/b?c@db:5432/lake?password=d")
    'postgresql+psycopg2://db:5432/lake'
    """
    scheme, separator, rest = uri.rpartition("://") if uri.startswith("sqlite") else uri.partition("://")
    # The password ends at the last @, whatever is in it.
    place = rest if scheme.startswith("sqlite") else (rest if separator else uri).rpartition("@")[2]
    return (scheme + separator if separator else "") + re.split(r"[?#]", place)[0]


def explained(
    catalog: str, kind: str, properties: Mapping[str, str], what: str, error: Exception
) -> KafkaLakeError | None:
    """Return the error to show for an error of PyIceberg or its libraries; None to raise that itself."""
    setting = catalog_variable(catalog)
    place = without_secrets(properties.get("uri", ""))
    where = f"{what}: catalog {catalog} ({kind}{f' at {place}' if place else ''})"
    change = f"Correct {setting}URI, or uri among catalog_properties"
    if isinstance(error, sql.NoSuchModuleError):
        return ConfigurationError(f"{where} names a database that SQLAlchemy doesn't support.", f"{change}.")
    if isinstance(error, _NO_ADDRESS):
        return ConfigurationError(
            f"{where} has an address that is not a URL.", f"{change}, as in {BACKENDS[kind].example}."
        )
    if isinstance(error, ModuleNotFoundError | iceberg.NotInstalledError):
        return ConfigurationError(f"{where} needs a Python package: {_line(error, properties)}.", "Install it.")
    if type(error).__module__ == "botocore.exceptions" and (lacks := _AMAZON.get(type(error).__name__)):
        missing, settings, variables = lacks
        return ConfigurationError(
            f"{where} has {missing}.",
            f"Set {setting}{settings}; or {variables} in the environment.",
        )
    if isinstance(error, requests.exceptions.SSLError):
        return CatalogRefusedError(
            f"{where} isn't trusted: {_line(error, properties)}.",
            f"Check {setting}SSL__CABUNDLE, or the host's name in {setting}URI.",
        )
    if isinstance(error, _REFUSED):
        return CatalogRefusedError(
            f"{where} refused this client: {_line(error, properties)}.", f"Check {setting}CREDENTIAL or {setting}TOKEN."
        )
    if isinstance(error, sql.DatabaseError) and _SQLITE_FILE.search(str(error.orig)):
        return CatalogRefusedError(
            f"{where} can't be used: {_line(error, properties)}.",
            f"Give this user access to the file and its folder, or {_lower(change)}.",
        )
    if isinstance(error, _NO_ANSWER):
        return CatalogError(
            f"{where} didn't answer: {_line(error, properties)}.",
            f"Check that it runs. If it has another address, {_lower(change)}.",
        )
    if kind == "rest" and isinstance(error, _NO_CATALOG):
        return CatalogRefusedError(
            f"{where} sent a response that isn't from a catalog: {_line(error, properties)}.",
            f"{change}: the address with its whole path, without /v1.",
        )
    return None


def _line(error: Exception, properties: Mapping[str, str]) -> str:
    """Return the operating system's error if there is one, else the first line of the message, without secrets."""
    message = str(error.orig) if isinstance(error, sql.DBAPIError) and error.orig else str(error)
    system = next((cause for cause in _causes(error) if isinstance(cause, OSError) and cause.strerror), None)
    text = (system.strerror or "") if system else next(iter(message.strip().splitlines()), type(error).__name__)
    for secret in _secrets(properties):
        text = text.replace(secret, "***")
    return text[:_LENGTH].rstrip(". ")


def _secrets(properties: Mapping[str, str]) -> list[str]:
    """Return all values to hide, the longest first, so that none is left in part."""
    uri = properties.get("uri", "")
    user = uri.partition("://")[2].rpartition("@")[0]
    values = {value for name, value in properties.items() if _SECRET.search(name.lower())}
    values |= {value for name, value in parse_qsl(uri.partition("?")[2]) if _SECRET.search(name.lower())}
    values |= {part for value in list(values) for part in value.split(":", 1)[1:]}
    values |= {uri, user, user.partition(":")[2]} if user else set()
    # Drivers' errors have decoded what is percent-encoded in an address.
    values |= {unquote(value) for value in values}
    return sorted(values - {""}, key=len, reverse=True)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _lower(sentence: str) -> str:
    return sentence[0].lower() + sentence[1:]
