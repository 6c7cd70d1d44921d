"""AWS Glue Schema Registry: what a schema version id stands for. Reads only."""

import re
import uuid
from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from typing import Any, cast, get_args
from urllib.parse import urlsplit

from kafka_lake.errors import (
    ConfigurationError,
    RegistryError,
    RegistryRefusedError,
    SchemaNotSupportedError,
    UnknownSchemaError,
)
from kafka_lake.kafka.registry import RegistryKind, SchemaType, WriterSchema

SCHEME = "glue"
KIND = "version"
"""The kind of the ids, as `kafka_lake.formats.task.framing` has it."""
_PASSING_CODES = {"InternalServiceException", "OperationTimeoutException", "ThrottlingException"}
_NOBODY = str(uuid.UUID(int=1))


class GlueSchemaRegistry:
    """The registry of an AWS account; boto3 finds the account's keys, as usual. Thread-safe.

    Args:
        properties: ``url`` is ``glue://REGION``.
        timeout: Seconds of silence after which a request counts as failed. It is tried twice.

    Raises:
        ConfigurationError: If the URL has no region or more than one, or if there are further properties.
    """

    kind: RegistryKind = "glue"

    def __init__(self, properties: Mapping[str, str], timeout: float = 10.0) -> None:
        self.url, self._timeout = properties["url"], timeout
        parts = urlsplit(self.url)
        self._region = parts.netloc
        if not re.fullmatch("[a-z0-9-]+", self._region) or parts.path.strip("/") or len(properties) > 1:
            others = ", ".join(properties.keys() - {"url"}) or "none"
            raise ConfigurationError(
                f"The schema registry's address is {SCHEME}://{self._region.rpartition('@')[2]}, with {others} of the "
                "properties of other registries.",
                "Write only glue://REGION. boto3 finds credentials in AWS_PROFILE and its other variables.",
            )
        self._schemas: dict[str, WriterSchema] = {}

    def __repr__(self) -> str:
        return f"GlueSchemaRegistry({self.url!r})"

    @cached_property
    def _client(self) -> Any:
        try:
            import boto3
            from botocore.config import Config
        except ImportError:
            raise ConfigurationError(
                "AWS Glue Schema Registry needs the Python package boto3.", "Install kafka-lake[glue]."
            ) from None
        seconds = {"connect_timeout": self._timeout, "read_timeout": self._timeout}
        config = Config(retries={"total_max_attempts": 2}, **seconds)
        return boto3.session.Session().client("glue", region_name=self._region, config=config)

    def by_id(self, schema_id: int | str, subject: str | None = None) -> WriterSchema:
        """Return the schema of an id, as the header of a record has it. It is requested once and then cached."""
        if not isinstance(schema_id, str) or not schema_id.startswith(f"{KIND} "):
            raise SchemaNotSupportedError(
                f"Schema {schema_id} isn't a schema version of AWS Glue, whose registry is configured.",
                "Set KAFKA_LAKE_SCHEMA_REGISTRY_URL to the registry of the producer.",
            )
        known = self._schemas.get(schema_id)
        return known or self._schemas.setdefault(schema_id, self._fetched(schema_id))

    def state(self) -> str:
        """Return the address; raises `RegistryError` if the registry doesn't answer."""
        with suppress(UnknownSchemaError):
            self._fetched(f"{KIND} {_NOBODY}")
        return self.url

    def _fetched(self, schema_id: str) -> WriterSchema:
        what = f"Schema {schema_id}"
        found = self._asked(what, SchemaVersionId=schema_id.removeprefix(f"{KIND} "))
        if found["DataFormat"] not in get_args(SchemaType):
            raise UnknownSchemaError(
                f"{what}: its type in {self.url} is {found['DataFormat']}.",
                f"Supported types: {', '.join(get_args(SchemaType))}.",
            )
        kind = cast(SchemaType, found["DataFormat"])
        return WriterSchema(kind, found["SchemaDefinition"], id=schema_id, version=found["VersionNumber"])

    def _asked(self, what: str, **arguments: str) -> dict[str, Any]:
        from botocore.exceptions import BotoCoreError, ClientError, ConnectionError, HTTPClientError

        try:
            answer: dict[str, Any] = self._client.get_schema_version(**arguments)
            return answer
        except ClientError as error:
            code = error.response["Error"]["Code"]
            if code == "EntityNotFoundException":
                raise UnknownSchemaError(
                    f"{what}: {self.url} has no such schema.",
                    "Check that the producer used this account and region.",
                ) from None
            if code in _PASSING_CODES or error.response["ResponseMetadata"].get("HTTPStatusCode", 0) >= 500:
                raise RegistryError(f"{what}: {self.url} is temporarily unavailable: {code}.", "Try again.") from None
            raise RegistryRefusedError(
                f"{what}: {self.url} refused this client: {code}.", "Allow it glue:GetSchemaVersion."
            ) from None
        except (ConnectionError, HTTPClientError) as error:
            raise RegistryError(f"{what}: {self.url} can't be reached: {error}.", "Check region and network.") from None
        except BotoCoreError as error:
            raise RegistryRefusedError(
                f"{what}: {self.url} got no request: {error}.", "Give boto3 credentials, for instance with AWS_PROFILE."
            ) from None
