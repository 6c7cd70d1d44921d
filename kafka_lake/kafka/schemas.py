"""Schemas as writers declared them: plain data, whether a registry or a file gave them. Pure: no network, no engine."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

SchemaType = Literal["AVRO", "PROTOBUF", "JSON"]


@dataclass(frozen=True)
class WriterSchema:
    """A schema that records were written with.

    Args:
        kind: What language it is in.
        text: The schema itself: Avro and JSON Schema as JSON; Protobuf as `.proto` text or as the base64 of a
            serialized FileDescriptorProto, both of which registries give.
        references: Texts of the schemas that it refers to, by the name that it uses for them, transitively. Each
            comes before those that refer to it.
        id: Its id in the registry; None if it came from a file.
        subject: Subject under which it was found, if that is known.
        version: Its version under that subject, if that is known.
    """

    kind: SchemaType
    text: str
    references: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    id: int | None = None
    subject: str | None = None
    version: int | None = None

    @property
    def label(self) -> str:
        """Return what messages call it: ``schema id 7`` or ``the schema file``."""
        return "the schema file" if self.id is None else f"schema id {self.id}"
