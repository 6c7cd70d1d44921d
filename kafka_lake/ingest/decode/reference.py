"""The tables of `docs/formats.md`, from what the decoders say of themselves."""

from collections.abc import Iterable, Mapping, Sequence

from kafka_lake.ingest.decode import ERROR_CLASSES
from kafka_lake.ingest.decode.avro import types as avro
from kafka_lake.ingest.decode.json import json_schema
from kafka_lake.ingest.decode.json import rules as json_rules
from kafka_lake.ingest.decode.protobuf import types as protobuf


def tables() -> Mapping[str, str]:
    """Return the tables as Markdown, by the name that their place in the page has."""
    return {
        "avro": _table(("Avro", "logical type", "Spark", "Iceberg", ""), avro.TYPES, code=4),
        "protobuf": _table(("Protobuf", "columns, as Spark calls them", ""), protobuf.TYPES, code=2),
        "protobuf-rules": _table(("", ""), protobuf.RULES),
        "json-schema": _table(("JSON Schema", "Spark", ""), json_schema.TYPES, code=2),
        "json": _table(("column", "what fits", "becomes", "doesn't fit"), json_rules.values(), code=1),
        "json-inference": _table(("values of a new field", "its column", ""), json_rules.inference()),
        "errors": _table(("class", "meaning"), ERROR_CLASSES.items(), code=1),
    }


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], code: int = 0) -> str:
    lines = [head, ["---"] * len(head)]
    lines += [[f"`{cell}`" if cell and n < code else cell for n, cell in enumerate(row)] for row in rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
