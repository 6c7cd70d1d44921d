"""Compiles Protobuf schemas of a registry or a file to self-contained message types."""

import base64
import binascii
import importlib
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from google.protobuf.descriptor_pb2 import (  # type: ignore[import-untyped]
    DescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from kafka_lake.errors import ConfigurationError, SchemaNotSupportedError
from kafka_lake.formats.protobuf.task.schema import UnsupportedTypeError, arrow_type
from kafka_lake.formats.task.framing import Message
from kafka_lake.kafka.registry import WriterSchema

_MAIN = "schema.proto"
_REMEDY = "Use `format: bytes` and decode the values in a transform, or change the producer's schema."
_BASE64 = re.compile(r"[A-Za-z0-9+/\s]+={0,2}\s*")
_IMPORT = re.compile(r"""\bimport\b[^"';]*["']([^"']+)["']""")
# Neither a path out of the folder nor an option of protoc.
_FILE = re.compile(r"(?!.*(?:^|/)\.{0,2}(?:/|$))[A-Za-z0-9_][\w.@+ /-]{0,199}", re.ASCII)
_WARNING, _LOG = re.compile("warning: |^WARNING: "), re.compile(r"^[EFIW][0-9]{4} .*?\] ")
_WELL_KNOWN = re.compile(r"(?:google/(?:api|protobuf|rpc|type)|confluent)/[a-z0-9_/]+\.proto")


@dataclass(frozen=True)
class ProtobufMessage:
    """A message type with all files that it needs, as plain data.

    Args:
        files: A serialized FileDescriptorSet, each file after those that it imports.
    """

    files: bytes
    name: str


class _SchemaError(ValueError):
    """An invalid schema; the message has no full stop."""


def message_of(schema: WriterSchema, indexes: Message = (0,), name: str | None = None) -> ProtobufMessage:
    """Return a message type of a schema, by its indexes, its number, or its name.

    Imports of Google's files (``google/protobuf``, ``google/type`` and the like) and Confluent's need no references.
    """
    try:
        files = _compile(schema.text, tuple(schema.references.items()))
        parsed = FileDescriptorSet.FromString(files).file
        found = _at(parsed[-1], indexes) if name is None else _named(parsed, name, schema.label)
        arrow_type(files, found)
    except (_SchemaError, UnsupportedTypeError) as error:
        raise SchemaNotSupportedError(f"{_capital(schema.label)} can't be read: {error}.", _REMEDY) from error
    return ProtobufMessage(files, found)


def imports_of(text: str) -> list[str]:
    """Return the names of the files that a .proto text imports, without paths out of the folder."""
    return [name for name in _IMPORT.findall(text) if _FILE.fullmatch(name)]


def _capital(label: str) -> str:
    return f"{label[0].upper()}{label[1:]}"


def _at(file: FileDescriptorProto, indexes: Message) -> str:
    if isinstance(indexes, int):
        # Entries of maps count, as in Java's MessageIndexFinder.
        numbered = sorted(_names(file.message_type, file.package, entries=True))
        if indexes >= len(numbered) or numbered[indexes] not in _names(file.message_type, file.package):
            raise _SchemaError(f"there is no message with the number {indexes}")
        return numbered[indexes]
    name: str = file.package
    candidates = [file.message_type]
    for index in indexes:
        found = {c[index].name: c[index] for c in candidates if index < len(c) and not c[index].options.map_entry}
        if not found:
            raise _SchemaError(f"there is no message at index {list(indexes)}")
        if len(found) > 1:
            java, python = found
            raise _SchemaError(
                f"the message at index {list(indexes)} is {java} as Java's serializers count and {python} as "
                "others do; use its name"
            )
        ((simple, message),) = found.items()
        name = f"{name}.{simple}" if name else simple
        candidates = [[m for m in message.nested_type if not m.options.map_entry], message.nested_type]
    return name


def _named(files: Sequence[FileDescriptorProto], name: str, label: str) -> str:
    main = files[-1]
    own = list(_names(main.message_type, main.package))
    for asked in (f"{main.package}.{name}" if main.package else name, name):
        if asked in own or any(asked in _names(file.message_type, file.package) for file in files):
            return asked
    raise ConfigurationError(
        f"{_capital(label)} has no message {name!r}.", f"It has {', '.join(own) or 'none at all'}."
    )


def _names(messages: Iterable[DescriptorProto], scope: str, entries: bool = False) -> Iterator[str]:
    for message in messages:
        if entries or not message.options.map_entry:
            name = f"{scope}.{message.name}" if scope else message.name
            yield name
            yield from _names(message.nested_type, name, entries)


@lru_cache(maxsize=256)
def _compile(text: str, references: tuple[tuple[str, str], ...]) -> bytes:
    """Return a serialized FileDescriptorSet: each file after its imports, the schema's file last.

    Descriptors are compiled, too: protoc reports errors in them that would crash the protobuf package.
    """
    texts = dict(references)
    main = _MAIN
    while main in texts:
        main = f"my_{main}"
    texts[main] = text
    return _protoc(main, *_imported(main, texts))


def _imported(main: str, texts: Mapping[str, str]) -> tuple[dict[str, str], dict[str, FileDescriptorProto]]:
    """Return a file and its imports: the texts to compile, and the descriptors."""
    sources: dict[str, str] = {}
    files: dict[str, FileDescriptorProto] = {}
    rest = [main]
    while rest:
        name = rest.pop()
        if name in sources or name in files:
            continue
        file = _described(name, texts[name]) if name in texts else _well_known(name)
        if file is not None:
            files[name] = file
            rest += file.dependency
        elif name in texts:
            sources[name] = texts[name]
            rest += _IMPORT.findall(texts[name])
    return sources, files


def _described(name: str, text: str) -> FileDescriptorProto | None:
    """Return the file of a FileDescriptorProto in base64; None for any other text."""
    if not _BASE64.fullmatch(text):
        return None
    try:
        file = FileDescriptorProto.FromString(base64.b64decode("".join(text.split()), validate=True))
    except (binascii.Error, DecodeError):
        return None
    file.name = name
    return file


def _well_known(name: str) -> FileDescriptorProto | None:
    if not _WELL_KNOWN.fullmatch(name):
        return None
    module = name.removesuffix(".proto").replace("/", ".") + "_pb2"
    if name.startswith("confluent/"):
        module = f"confluent_kafka.schema_registry.{module}"
    try:
        return FileDescriptorProto.FromString(importlib.import_module(module).DESCRIPTOR.serialized_pb)
    except ImportError:
        return None


def _protoc(main: str, sources: Mapping[str, str], files: Mapping[str, FileDescriptorProto]) -> bytes:
    """Compile a file with all that it imports."""
    if find_spec("grpc_tools") is None:
        raise ConfigurationError(
            "Protobuf schemas are compiled by protoc, which is not installed.", "pip install 'kafka-lake[protobuf]'"
        )
    with TemporaryDirectory(prefix="kafka-lake-protoc-") as folder:
        given, result, root = Path(folder, "given"), Path(folder, "result"), Path(folder, "source")
        root.mkdir()
        for name, text in sources.items():
            if not _FILE.fullmatch(name):
                raise _SchemaError(f"a reference has the name {name!r}, which is not the name of a file to import")
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text.encode("utf-8", "replace"))
        given.write_bytes(FileDescriptorSet(file=files.values()).SerializeToString())
        options = [f"-I{root}", f"--descriptor_set_in={given}", "--include_imports", f"--descriptor_set_out={result}"]
        command = [sys.executable, "-P", "-m", "grpc_tools.protoc", *options, main]
        run = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace", check=False)
        if run.returncode:
            lines = [_LOG.sub("", line) for line in run.stderr.splitlines() if not _WARNING.search(line)]
            error = lines[0].replace(f"{root}/", "") if lines else f"code {run.returncode}"
            raise _SchemaError(f"protoc reports {error.rstrip('.')}")
        return result.read_bytes()
