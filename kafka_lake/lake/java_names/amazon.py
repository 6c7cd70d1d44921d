"""Settings of Amazon's services, and of what is like them, in Java's names. Pure.

https://iceberg.apache.org/docs/latest/aws/
"""

from urllib.parse import urlsplit

from kafka_lake.common.errors import ConfigurationError

_REGIONS = ("client.region", "s3.region", "glue.region")
SERVICE_KEYS = ("access-key-id", "secret-access-key", "session-token")
"""What keys of a service end with: ``s3.``, ``client.``, ``glue.`` and, in Java alone, ``rest.`` are before it."""

_ENCRYPTION = ("s3.server-side-encryption", "s3.sse-kms-key-id")
# By PyIceberg's name, what the property of one of Java's HTTP clients ends with.
_TIMEOUTS = {"s3.connect-timeout": "connection-timeout-ms", "s3.request-timeout": "socket-timeout-ms"}
_ROLES = ("client.role-arn", "s3.role-arn")
_SESSIONS = ("s3.role-session-name", "client.role-session-name")
_PROFILES = ("client.profile-name", "s3.profile-name", "glue.profile-name")


def amazon_properties(name: str, kind: str, told: dict[str, str]) -> dict[str, str]:
    """Return the properties with those of Amazon's services, and of what is like them, in Java's names."""
    if encryption := [key for key in told if key in _ENCRYPTION or key.startswith("s3.sse.")]:
        # Of `s3.server-side-encryption` PyIceberg's PyArrowFileIO knows nothing, and Java; of `s3.sse.type` PyIceberg.
        raise ConfigurationError(
            f"Catalog {name}: {encryption[0]} would not count for all files. PyIceberg and Spark both write some, and "
            "have no such property in common.",
            "Leave it out and set the bucket's default encryption in S3, which counts for both.",
        )
    regions = {key: told.pop(key) for key in _REGIONS if key in told}
    if len(set(regions.values())) > 1:
        written = ", ".join(f"{key}={value}" for key, value in regions.items())
        raise ConfigurationError(
            f"Catalog {name}: {written}. Spark knows one region for all services.", "Give one, as client.region."
        )
    if regions:
        told["client.region"] = next(iter(regions.values()))
    if profiles := [key for key in _PROFILES if key in told]:
        raise ConfigurationError(
            f"Catalog {name}: Spark has no property for a profile, and the catalog has {profiles[0]}.",
            "Leave it out and set AWS_PROFILE in the environment, which both engines read.",
        )
    keys = [f"{service}.{key}" for service in ("glue", "client") for key in SERVICE_KEYS if f"{service}.{key}" in told]
    if kind == "glue" and keys:
        raise ConfigurationError(
            f"Catalog {name}: Spark has no properties for Glue's keys, and the catalog has {keys[0]}.",
            "Leave them out and set AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN in the environment, "
            "which both engines read. Keys for files alone are s3.access-key-id and so on.",
        )
    shared = {f"s3.{key}": told.pop(f"client.{key}") for key in SERVICE_KEYS if f"client.{key}" in told}
    if "s3.access-key-id" not in told:
        told |= shared
    if told.pop("s3.anonymous", "") == "true":
        told.setdefault(
            "client.credentials-provider", "software.amazon.awssdk.auth.credentials.AnonymousCredentialsProvider"
        )
    return _role(name, kind, _connection(name, told))


def _connection(name: str, told: dict[str, str]) -> dict[str, str]:
    """Return the properties with timeouts and proxy in Java's names.

    PyIceberg's are in seconds, and Java's are those of its HTTP client, "in milliseconds". Java's has no property for
    a proxy's user, and the SDK's ``ProxyConfiguration`` says: "Proxy endpoint user info is not supported", likewise of
    path, query and fragment.
    """
    if (endpoint := told.get("s3.endpoint")) is not None and not _is_url(endpoint):
        # Java takes minio:9000 for an address whose scheme is minio.
        raise ConfigurationError(
            f"Catalog {name}: s3.endpoint is not a URL.", "Write it with its scheme, as https://host:9000."
        )
    client = told.get("http-client.type", "apache")
    for python, java in _TIMEOUTS.items():
        if seconds := told.pop(python, None):
            told.setdefault(f"http-client.{client}.{java}", _milliseconds(name, python, seconds))
    if proxy := told.pop("s3.proxy-uri", None):
        told.setdefault("http-client.proxy-endpoint", _proxy(name, proxy))
    return told


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _milliseconds(name: str, key: str, seconds: str) -> str:
    try:
        return str(round(float(seconds) * 1000))
    except (ValueError, OverflowError):
        raise ConfigurationError(f"Catalog {name}: {key} is not a number.", "Write seconds.") from None


def _proxy(name: str, proxy: str) -> str:
    try:
        parts = urlsplit(proxy)
        extra = "@" in parts.netloc or parts.path.strip("/") or parts.query or parts.fragment
        address = f"{parts.scheme}://{parts.netloc}"
        is_address = bool(parts.scheme and parts.hostname) and parts.port != 0
    except ValueError:
        is_address = False
    if not is_address:
        raise ConfigurationError(f"Catalog {name}: s3.proxy-uri is not a URL.", "Write http://host:port.")
    if extra:
        raise ConfigurationError(
            f"Catalog {name}: s3.proxy-uri has more than a host and a port, and Spark can't be told a proxy's user, "
            "password or path.",
            "Write http://host:port, and let the proxy know this machine by its address.",
        )
    return address


def _role(name: str, kind: str, told: dict[str, str]) -> dict[str, str]:
    """Return the properties with the role for files in Java's names.

    Iceberg's ``AssumeRoleAwsClientFactory``: "If set, all AWS clients will assume a role of the given ARN". PyIceberg
    reads the role in `PyArrowFileIO` alone, and its Glue catalog doesn't know it.
    """
    if kind == "glue" and (given := [key for key in (*_ROLES, *_SESSIONS) if key in told]):
        raise ConfigurationError(
            f"Catalog {name}: the catalog has {given[0]}. Spark would take that role for Glue too, PyIceberg for files "
            "alone.",
            "Leave it out. Give the role by the environment, which both engines read for both services: by "
            "AWS_ROLE_ARN with AWS_WEB_IDENTITY_TOKEN_FILE, the machine's own role, or AWS_PROFILE.",
        )
    roles = {told.pop(key) for key in _ROLES if key in told}
    sessions = [told.pop(key) for key in _SESSIONS if key in told]
    if not roles:
        return told
    if len(roles) > 1:
        raise ConfigurationError(
            f"Catalog {name}: client.role-arn and s3.role-arn differ. Spark has one role for all services.",
            "Give one, as client.role-arn.",
        )
    if "client.region" not in told:
        raise ConfigurationError(f"Catalog {name}: Spark needs the region of a role.", "Set client.region.")
    assumed = {
        "client.factory": "org.apache.iceberg.aws.AssumeRoleAwsClientFactory",
        "client.assume-role.arn": roles.pop(),
        "client.assume-role.region": told["client.region"],
    }
    if sessions:
        assumed["client.assume-role.session-name"] = sessions[0]
    return {**assumed, **told}
