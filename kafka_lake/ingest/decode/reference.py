"""The tables of `docs/formats.md`, from what the decoders say of themselves."""

from collections.abc import Mapping

from kafka_lake.common.markdown import table
from kafka_lake.ingest.decode import ERROR_CLASSES
from kafka_lake.ingest.decode.avro import types as avro
from kafka_lake.ingest.decode.json import json_schema
from kafka_lake.ingest.decode.json import rules as json_rules
from kafka_lake.ingest.decode.protobuf import types as protobuf


def tables() -> Mapping[str, str]:
    """Return the tables as Markdown, by the name that their place in the page has."""
    return {
        "avro": table(("Avro", "logical type", "Spark", "Iceberg", ""), avro.TYPES, code=4),
        "protobuf": table(("Protobuf", "columns, as Spark calls them", ""), protobuf.TYPES, code=2),
        "protobuf-rules": table(("", ""), protobuf.RULES),
        "json-schema": table(("JSON Schema", "Spark", ""), json_schema.TYPES, code=2),
        "json": table(("column", "what fits", "becomes", "doesn't fit"), json_rules.values(), code=1),
        "json-inference": table(("values of a new field", "its column", ""), json_rules.inference()),
        "errors": table(("class", "meaning"), ERROR_CLASSES.items(), code=1),
    }
