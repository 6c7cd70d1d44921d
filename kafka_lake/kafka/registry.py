"""A schema registry that speaks Confluent's API: what an id stands for, what a subject has. Reads only."""

import base64
import json
import math
import os
import re
import ssl
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Protocol, cast, get_args
from urllib.parse import urlsplit, urlunsplit

import requests

from kafka_lake.common import environment
from kafka_lake.common.environment import own_variables
from kafka_lake.common.text import counted
from kafka_lake.errors import (
    ConfigurationError,
    KafkaLakeError,
    RegistryError,
    RegistryRefusedError,
    SchemaNotSupportedError,
    UnknownSchemaError,
)

_FILES = ("ssl.ca.location", "ssl.certificate.location", "ssl.key.location")
_MESSAGE_LENGTH = 300
# The client's own retries are for hiccups; who can wait longer calls again.
_BRIEF_RETRIES = {"max.retries": 1, "retries.wait.ms": 200, "retries.max.wait.ms": 500}
_NUMBERS = {"timeout", "cache.capacity", "cache.latest.ttl.sec", *_BRIEF_RETRIES}
_SECRET = re.compile(r"password|secret|token$|user\.info")

# https://docs.confluent.io/platform/current/schema-registry/develop/api.html#errors: subject, version, schema, and
# the subject's own compatibility level. Any other 404 doesn't come from a registry.
_NO_SCHEMA = 40403
_NO_SUCH_THING = {40401, 40402, _NO_SCHEMA, 40408}
_PASSING_STATUS = {408, 425, 429}
_LARGEST_ID = 2**31 - 1
# The other side went away in the middle.
_PASSING_TLS = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)
# What the client raises for an answer that isn't a registry's, a login page for instance.
_STUMBLES = (AttributeError, LookupError, TypeError, ValueError)

_PROPERTIES = "Correct the property in registry_properties:, or in its KAFKA_LAKE_REGISTRY_* variable."
_UNREACHABLE = (
    "Check that the registry runs and KAFKA_LAKE_SCHEMA_REGISTRY_URL is right; `kafka-lake doctor` checks it too."
)
_WRONG_ADDRESS = (
    "Check that KAFKA_LAKE_SCHEMA_REGISTRY_URL is a registry's address with its whole path, which is "
    "/apis/ccompat/v7 for Apicurio."
)
_CREDENTIALS = "Check KAFKA_LAKE_REGISTRY_BASIC_AUTH_USER_INFO (user:password) or KAFKA_LAKE_REGISTRY_BEARER_AUTH_*."

_APICURIO_PATH = "/apis/ccompat"
_USE_ID = "apicurio.use.id"
_OTHER_IDS = {
    "8-byte id": "If Apicurio's serializer wrote it, set KAFKA_LAKE_REGISTRY_APICURIO_USE_ID to the producer's "
    "apicurio.registry.use-id: globalId or contentId.",
    "globalId": "Let KAFKA_LAKE_SCHEMA_REGISTRY_URL end with /apis/ccompat/v7, with a user or a token, not OAuth; or "
    "have the producer write apicurio.registry.use-id=contentId.",
    "version": "It is of AWS Glue Schema Registry: set KAFKA_LAKE_SCHEMA_REGISTRY_URL=glue://REGION.",
}

SchemaType = Literal["AVRO", "PROTOBUF", "JSON"]
RegistryKind = Literal["confluent", "apicurio", "glue"]
"""Whose serializers wrote the records: it decides which headers have schema ids."""


@dataclass(frozen=True)
class WriterSchema:
    """A schema that records were written with, from a registry or a file.

    Args:
        text: Avro and JSON Schema as JSON; Protobuf as `.proto` text or as the base64 of a serialized
            FileDescriptorProto: registries return both.
        references: Texts of the schemas that it refers to, transitively, by the name used in the text. Each comes
            before those that refer to it.
        id: None for a schema from a file; text for ids of other kinds than Confluent's numbers.
        subject: None if unknown, like ``version``.
    """

    kind: SchemaType
    text: str
    references: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    id: int | str | None = None
    subject: str | None = None
    version: int | None = None

    @property
    def label(self) -> str:
        """Return its name in messages: ``schema id 7``, ``schema version 4c1f…`` or ``the schema file``."""
        if self.id is None:
            return "the schema file"
        return f"schema {self.id}" if isinstance(self.id, str) else f"schema id {self.id}"


class SchemaSource(Protocol):
    """What a run asks of a schema registry."""

    url: str
    kind: RegistryKind

    def by_id(self, schema_id: int | str, subject: str | None = None) -> WriterSchema:
        """Return the schema of an id, as a record has it. Raises `RegistryError`, or `SchemaNotSupportedError`."""

    def state(self) -> str:
        """Return the address, and what is there; raises `RegistryError` if the registry doesn't answer."""


def properties_from_env(environ: Mapping[str, str] | None = None, cluster: str | None = None) -> dict[str, str]:
    """Return the client properties that environment variables set.

    ``KAFKA_LAKE_REGISTRY_BASIC_AUTH_USER_INFO`` is ``basic.auth.user.info``: one underscore stands for a dot.
    ``KAFKA_LAKE_SCHEMA_REGISTRY_URL`` is ``url``. Empty variables count as unset. The registry of a cluster with a name
    has its own variables: ``KAFKA_LAKE_REGISTRY__EU__URL``.
    """
    variables = os.environ if environ is None else environ
    given = {name: value for name, value in variables.items() if value and name != environment.REGISTRY_PORT.name}
    properties = environment.properties_of(environment.REGISTRY, cluster, given)
    if not cluster and (url := environment.SCHEMA_REGISTRY_URL.value(variables)):
        properties["url"] = url
    return properties


def http_errors(name: str) -> tuple[type[Exception], ...]:
    """Return the exception class of that name of the HTTP library that confluent-kafka uses, as ``except`` takes it.

    confluent-kafka uses httpx2 if it is installed, else httpx, and only a private module says which. A version that
    uses neither has none.

    >>> http_errors("NoSuchError")
    ()
    """
    classes = (getattr(sys.modules.get(library), name, None) for library in ("httpx2", "httpx"))
    return tuple(cls for cls in classes if cls is not None)


class SchemaRegistry:
    """A registry behind one set of client properties; the connection is made at the first question. Thread-safe.

    Args:
        properties: Those of confluent-kafka's ``SchemaRegistryClient``, ``url`` among them, which may list several
            addresses of one registry. ``bearer.auth.token`` needs no other property.
        timeout: Seconds of silence after which a request counts as failed. It is tried twice.
        cluster: Name of the Kafka cluster whose own registry it is, for errors; None for the only one.

    Raises:
        ConfigurationError: If ``url`` is missing, isn't a URL or has credentials, or if a property that must be a
            number isn't one.
    """

    def __init__(self, properties: Mapping[str, str], timeout: float = 10.0, cluster: str | None = None) -> None:
        self._cluster = cluster
        self.url = _addresses(properties.get("url", ""))
        self._use_id = properties.get(_USE_ID)
        if self._use_id not in (None, "globalId", "contentId"):
            raise ConfigurationError(
                f"The schema registry's {_USE_ID} is {self._use_id}, neither globalId nor contentId.", _PROPERTIES
            )
        self.kind: RegistryKind = "apicurio" if self._use_id or _APICURIO_PATH in self.url else "confluent"
        others = {name: value for name, value in properties.items() if name != _USE_ID}
        self._settings = _client_settings(others, timeout) | {"url": self.url}
        self._secrets = _secrets(self._settings)
        self._schemas: dict[tuple[int | str, str | None], WriterSchema] = {}

    def __repr__(self) -> str:
        return f"SchemaRegistry({self.url!r})"

    @cached_property
    def _client(self) -> Any:
        # Takes a quarter of a second to import, which a topic without a registry needn't pay.
        from confluent_kafka.schema_registry import SchemaRegistryClient

        for name in _FILES:
            if name in self._settings and not Path(self._settings[name]).exists():
                raise ConfigurationError(
                    f"The schema registry's {name} is {self._settings[name]}, which doesn't exist.", _PROPERTIES
                )
        try:
            return SchemaRegistryClient(self._settings)
        except (OSError, TypeError, ValueError) as error:
            raise ConfigurationError(
                f"The client for the schema registry at {self.url} can't be created: {self._without_secrets(error)}.",
                _PROPERTIES,
            ) from None

    def by_id(self, schema_id: int | str, subject: str | None = None) -> WriterSchema:
        """Return the schema of an id, as the header of a record has it. It is requested once and then cached."""
        context = _context(subject)
        known = self._schemas.get((schema_id, context))
        return known or self._schemas.setdefault((schema_id, context), self._fetched(schema_id, context))

    def latest(self, subject: str) -> WriterSchema | None:
        """Return the newest schema of a subject, requested each time; None if there is no such subject."""
        what = f"Subject {subject}"
        version = self._ask(what, lambda client: client.get_version(subject, "latest"))
        return version and self._schema(
            what, version.schema, schema_id=version.schema_id, subject=subject, version=version.version
        )

    def state(self) -> str:
        """Return the number of subjects, and the address. Raises as `latest` does."""
        return f"{counted(len(self.subjects()), 'subject')} at {self.url}"

    def subjects(self) -> list[str]:
        """Return the names of all subjects, sorted. Raises as `latest` does."""
        return sorted(self._ask("Listing the subjects", lambda client: client.get_subjects()) or [])

    def _fetched(self, schema_id: int | str, context: str | None) -> WriterSchema:
        what = f"Schema {schema_id}" if isinstance(schema_id, str) else f"Schema id {schema_id}"
        what += f" of context {context}" if context else ""
        kind, _, text = str(schema_id).rpartition(" ")
        schema = self._asks(kind, what)(what, text, context)
        if schema is None:
            raise UnknownSchemaError(
                f"{what}: the schema registry at {self.url} has no such schema.",
                "Check that the producer used this registry, and that the registry wasn't replaced.",
            )
        return self._schema(what, schema, schema_id)

    def _asks(self, kind: str, what: str) -> Callable[[str, str, str | None], Any]:
        """Return how to ask for ids of a kind of `kafka_lake.formats.task.framing`."""
        kind = {"": self._use_id or "contentId", "8-byte id": self._use_id or kind}.get(kind, kind)
        ways = {"guid": self._by_guid, "contentId": self._by_number, "globalId": self._by_global_id}
        if (way := ways.get(kind)) is None:
            raise SchemaNotSupportedError(f"{what} can't be found in the registry at {self.url}.", _OTHER_IDS[kind])
        return way

    def _by_number(self, what: str, number: str, context: str | None) -> Any:
        # For larger ids a registry answers 404, as it does at a wrong address.
        if not 0 <= int(number) <= _LARGEST_ID:
            return None
        return self._ask(what, lambda client: client.get_schema(int(number), context))

    def _by_guid(self, what: str, guid: str, _: str | None) -> Any:
        from confluent_kafka.schema_registry.error import SchemaRegistryError

        def ask(client: Any) -> Any:
            try:
                return client.get_schema_by_guid(guid)
            except SchemaRegistryError as error:
                if error.http_status_code == 404 and error.error_code not in _NO_SUCH_THING:
                    # A registry without GUIDs answers as a wrong address does; it knows that it lacks a number.
                    client.get_schema(_LARGEST_ID)
                raise

        return self._ask(what, ask)

    def _by_global_id(self, what: str, number: str, _: str | None) -> Any:
        """Return the schema of an id that Confluent's API doesn't have, by Apicurio's own API."""
        from confluent_kafka.schema_registry import Schema
        from confluent_kafka.schema_registry.error import SchemaRegistryError

        root, ccompat, _ = self.url.split(",")[0].partition(_APICURIO_PATH)
        if not ccompat or "bearer.auth.issuer.endpoint.url" in self._settings:
            raise SchemaNotSupportedError(
                f"{what} can't be found in the registry at {self.url}.", _OTHER_IDS["globalId"]
            )
        settings = self._settings
        user, _, password = settings.get("basic.auth.user.info", "").partition(":")
        token = settings.get("bearer.auth.token")
        files = [settings[name] for name in _FILES[1:] if name in settings]

        def ask(_: Any) -> Schema:
            try:
                answer = requests.get(
                    f"{root}/apis/registry/v2/ids/globalIds/{number}?dereference=true",
                    auth=(user, password) if user else None,
                    headers={"Authorization": f"Bearer {token}"} if token else None,
                    timeout=settings["timeout"],
                    verify=settings.get("ssl.ca.location", True),
                    cert=(tuple(files) if len(files) > 1 else files[0]) if files else None,
                )
            except requests.RequestException as error:
                unreachable = f"{self._where(what)} can't be reached: {self._without_secrets(error)}."
                raise RegistryError(unreachable, _UNREACHABLE) from None
            if not answer.ok:
                # Of Apicurio's exceptions for what it doesn't have. Any other 404 doesn't come from a registry.
                code = _NO_SCHEMA if "NotFoundException" in answer.text else 0
                raise SchemaRegistryError(answer.status_code, code, answer.text)
            return Schema(answer.text, _kind_of(answer.headers.get("content-type", ""), answer.text))

        return self._ask(what, ask)

    def _schema(
        self, what: str, schema: Any, schema_id: int | str, subject: str | None = None, version: int | None = None
    ) -> WriterSchema:
        if not schema.schema_str:
            raise self._no_registry(what)
        if schema.schema_type not in get_args(SchemaType):
            raise UnknownSchemaError(
                f"{what}: the schema registry at {self.url} has it with type {schema.schema_type}.",
                f"Supported types: {', '.join(get_args(SchemaType))}.",
            )
        references: dict[str, str] = {}
        self._add_references(what, schema.references or [], set(), references)
        kind, texts = cast(SchemaType, schema.schema_type), MappingProxyType(references)
        return WriterSchema(kind, schema.schema_str, texts, schema_id, subject=subject, version=version)

    def _add_references(self, what: str, references: Iterable[Any], seen: set[str], texts: dict[str, str]) -> None:
        for reference in references:
            if reference.name in seen:
                continue
            seen.add(reference.name)
            found = self._referenced(what, reference)
            self._add_references(what, found.references or [], seen, texts)
            texts[reference.name] = found.schema_str

    def _referenced(self, what: str, reference: Any) -> Any:
        where = f"{what}, reference {reference.name} (subject {reference.subject} version {reference.version})"
        version = self._ask(
            where, lambda client: client.get_version(reference.subject, reference.version, deleted=True)
        )
        if version is None:
            raise UnknownSchemaError(
                f"{where}: the schema registry at {self.url} doesn't have it any more.", "Register it again."
            )
        return version.schema

    def _ask(self, what: str, question: Callable[[Any], Any]) -> Any:
        """Return the client's answer; None if the registry says that there is no such thing."""
        try:
            return self._asked(what, question)
        except KafkaLakeError as error:
            raise own_variables(error, self._cluster) from None

    def _asked(self, what: str, question: Callable[[Any], Any]) -> Any:
        client = self._client
        from confluent_kafka.schema_registry.error import OAuthTokenError, SchemaRegistryError

        try:
            return question(client)
        except SchemaRegistryError as error:
            if error.http_status_code == 404 and error.error_code in _NO_SUCH_THING:
                return None
            raise self._answered(what, error) from None
        except OAuthTokenError as error:
            raise self._without_token(what, error) from None
        except http_errors("TimeoutException"):
            seconds = self._settings["timeout"]
            raise RegistryError(f"{self._where(what)} didn't answer within {seconds:g} s.", _UNREACHABLE) from None
        except http_errors("HTTPError") as error:
            raise self._unanswered(what, error) from None
        except _STUMBLES + http_errors("InvalidURL"):
            raise self._no_registry(what) from None

    def _where(self, what: str) -> str:
        return f"{what}: the schema registry at {self.url}"

    def _answered(self, what: str, error: Any) -> RegistryError:
        status = error.http_status_code
        answer = f"HTTP {status}, {self._without_secrets(error.error_message or 'without a message')}"
        if status == 401:
            return RegistryRefusedError(f"{self._where(what)} refused {self._principal}: {answer}.", _CREDENTIALS)
        if status == 403:
            return RegistryRefusedError(
                f"{self._where(what)} doesn't allow this request to {self._principal}: {answer}.",
                "Allow this account to read subjects, schemas and their configuration, or set another one in "
                "KAFKA_LAKE_REGISTRY_BASIC_AUTH_USER_INFO or KAFKA_LAKE_REGISTRY_BEARER_AUTH_*.",
            )
        if status in _PASSING_STATUS or status >= 500:
            return RegistryError(f"{self._where(what)} is temporarily unavailable: {answer}.", "Try again later.")
        return RegistryRefusedError(f"{self._where(what)} answered {answer}.", _WRONG_ADDRESS)

    def _unanswered(self, what: str, error: Exception) -> RegistryError:
        tls = next((cause for cause in _causes(error) if isinstance(cause, ssl.SSLError)), None)
        if isinstance(tls, ssl.SSLCertVerificationError):
            return RegistryRefusedError(
                f"{self._where(what)} isn't trusted: {self._without_secrets(tls)}.",
                "Check KAFKA_LAKE_REGISTRY_SSL_CA_LOCATION (the certificate that signed the registry's) and the host's "
                "name in its address.",
            )
        if tls is not None and not isinstance(tls, _PASSING_TLS):
            return RegistryRefusedError(
                f"{self._where(what)} and this client can't agree on TLS: {self._without_secrets(tls)}.",
                "If the registry asks for a client certificate, check KAFKA_LAKE_REGISTRY_SSL_CERTIFICATE_LOCATION and "
                "KAFKA_LAKE_REGISTRY_SSL_KEY_LOCATION; if it has no TLS, its address begins with http.",
            )
        return RegistryError(f"{self._where(what)} can't be reached: {self._without_secrets(error)}.", _UNREACHABLE)

    def _without_token(self, what: str, error: Any) -> RegistryError:
        passing_errors = http_errors("TransportError") + http_errors("HTTPStatusError")
        passing = any(isinstance(cause, passing_errors) for cause in _causes(error))
        return (RegistryError if passing else RegistryRefusedError)(
            f"{self._where(what)} got no request, because no token could be obtained: "
            f"{self._without_secrets(error.message)}.",
            "Check KAFKA_LAKE_REGISTRY_BEARER_AUTH_ISSUER_ENDPOINT_URL and the client id, secret and scope beside it.",
        )

    def _no_registry(self, what: str) -> RegistryError:
        return RegistryRefusedError(
            f"{self._where(what)} sent a response that isn't from a schema registry.", _WRONG_ADDRESS
        )

    @property
    def _principal(self) -> str:
        if user := self._settings.get("basic.auth.user.info", "").partition(":")[0]:
            return f"user {user}"
        return "this client's token" if "bearer.auth.credentials.source" in self._settings else "a client without name"

    def _without_secrets(self, message: object) -> str:
        """Return a message in one line without secrets."""
        text = " ".join(str(message).split())
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text[:_MESSAGE_LENGTH].rstrip(". ")


def _addresses(url: str) -> str:
    """Return a property ``url`` in its normal form; it may list several addresses."""
    addresses = []
    for address in url.split(","):
        try:
            parts = urlsplit(address.strip())
            sound = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 and "@" not in url
        except ValueError:
            sound = False
        if not sound:
            raise ConfigurationError(
                # A password ends at the last @, whatever is in it.
                f"The schema registry's address {url.rpartition('@')[2]!r} is not an http or https URL, or has "
                "credentials.",
                "Correct KAFKA_LAKE_SCHEMA_REGISTRY_URL, or url among the registry resource's properties: one URL, or "
                "several separated by commas. Credentials belong in KAFKA_LAKE_REGISTRY_BASIC_AUTH_USER_INFO.",
            )
        addresses.append(urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/"), "", "")))
    return ",".join(addresses)


def _client_settings(properties: Mapping[str, str], timeout: float) -> dict[str, Any]:
    """Return the properties as the client takes them; raises `ConfigurationError` for what isn't a number."""
    settings: dict[str, Any] = {"timeout": timeout, **_BRIEF_RETRIES, **properties}
    for name in _NUMBERS & settings.keys():
        try:
            number = float(settings[name])
        except (TypeError, ValueError):
            number = math.nan
        # A timeout of nan never ends, and one of inf is too large for a socket.
        if not 0 <= number < math.inf:
            raise ConfigurationError(
                f"The schema registry's {name} is {settings[name]}, which is not a number of at least 0.", _PROPERTIES
            )
        settings[name] = number
    if "bearer.auth.token" in settings:
        settings.setdefault("bearer.auth.credentials.source", "STATIC_TOKEN")
    if "bearer.auth.credentials.source" in settings:
        # The client demands it, and only Confluent Cloud has it.
        settings.setdefault("bearer.auth.logical.cluster", "")
    if "ssl.certificate.location" in settings:
        # Without any, OpenSSL asks at the terminal for the password of an encrypted key.
        settings.setdefault("ssl.key.password", "")
    return settings


def _secrets(settings: Mapping[str, Any]) -> list[str]:
    """Return all values to hide, the longest first, so that none is left in part."""
    values = {str(value) for name, value in settings.items() if _SECRET.search(name)}
    user_info = settings.get("basic.auth.user.info", "")
    values |= {user_info.partition(":")[2], base64.b64encode(user_info.encode()).decode()}
    values.add(settings.get("proxy", "").rpartition("@")[0].rpartition(":")[2])
    return sorted(values - {""}, key=len, reverse=True)


def _kind_of(content_type: str, text: str) -> SchemaType:
    """Return the language of a schema: Apicurio's content type is one of Protobuf or JSON, and Avro is JSON, too.

    >>> _kind_of("application/json", '{"type": "object"}'), _kind_of("application/json", '{"type": "record"}')
    ('JSON', 'AVRO')
    """
    if "protobuf" in content_type:
        return "PROTOBUF"
    schema = json.loads(text)
    return "JSON" if isinstance(schema, dict) and (schema.get("type") == "object" or "$schema" in schema) else "AVRO"


def _context(subject: str | None) -> str | None:
    """Return the context of a qualified subject.

    https://docs.confluent.io/platform/current/schema-registry/schema-contexts-cp.html

    >>> _context(":.eu:orders-value"), _context("orders-value")
    (':.eu:', None)
    """
    match = re.match(r":\.[^:]*:", subject or "")
    return match[0] if match else None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
