"""Settings of Amazon's services, and of what is like them, in Java's names. Pure.

https://iceberg.apache.org/docs/latest/aws/
"""

from kafka_lake.common.errors import ConfigurationError

_REGIONS = ("client.region", "s3.region", "glue.region")
_KEYS = ("access-key-id", "secret-access-key", "session-token")
_PROFILES = ("client.profile-name", "s3.profile-name", "glue.profile-name")


def amazon_properties(name: str, kind: str, told: dict[str, str]) -> dict[str, str]:
    """Return the properties with those of Amazon's services, and of what is like them, in Java's names."""
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
    keys = [f"{service}.{key}" for service in ("glue", "client") for key in _KEYS if f"{service}.{key}" in told]
    if kind == "glue" and keys:
        raise ConfigurationError(
            f"Catalog {name}: Spark has no properties for Glue's keys, and the catalog has {keys[0]}.",
            "Leave them out and set AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN in the environment, "
            "which both engines read. Keys for files alone are s3.access-key-id and so on.",
        )
    shared = {f"s3.{key}": told.pop(f"client.{key}") for key in _KEYS if f"client.{key}" in told}
    if "s3.access-key-id" not in told:
        told |= shared
    if told.pop("s3.anonymous", "false").lower() == "true":
        told.setdefault(
            "client.credentials-provider", "software.amazon.awssdk.auth.credentials.AnonymousCredentialsProvider"
        )
    if proxy := told.pop("s3.proxy-uri", None):
        told.setdefault("http-client.proxy-endpoint", proxy)
    return _role(name, told)


def _role(name: str, told: dict[str, str]) -> dict[str, str]:
    roles = {told.pop(key) for key in ("client.role-arn", "s3.role-arn") if key in told}
    sessions = [told.pop(key) for key in ("client.role-session-name", "s3.role-session-name") if key in told]
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
