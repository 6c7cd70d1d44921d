"""Our verdict on two Avro schemas is the registry's, by every level, for random pairs of schemas."""

import json
import random
import uuid
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.error import SchemaRegistryError

from kafka_lake.ingest.stage.compatibility import avro_problems
from kafka_lake.ingest.topic_table import Compatibility
from kafka_lake.kafka.schemas import WriterSchema
from kafka_lake.local_stack.registry import EmbeddedRegistry

pytestmark = pytest.mark.integration

TYPES = ["int", "long", "float", "double", "string", "bytes", "boolean", ["null", "int"], ["null", "string"],
         {"type": "enum", "name": "E", "symbols": ["A", "B"]}, {"type": "array", "items": "long"}]  # fmt: skip
DEFAULTS = {"int": 0, "long": 0, "float": 0.0, "double": 0.0, "string": "", "bytes": "", "boolean": False}


def kind_of(random_: random.Random, name: str) -> Any:
    kind = random_.choice(TYPES)
    return {**kind, "name": f"E_{name}"} if isinstance(kind, dict) and kind["type"] == "enum" else kind


def record(random_: random.Random) -> dict[str, Any]:
    fields = []
    for name in random_.sample("abcd", random_.randint(1, 3)):
        kind = kind_of(random_, name)
        field: dict[str, Any] = {"name": name, "type": kind}
        if random_.random() < 0.5:
            if isinstance(kind, list):
                field["default"] = None
            elif isinstance(kind, str):
                field["default"] = DEFAULTS[kind]
        fields.append(field)
    return {"type": "record", "name": "R", "fields": fields}


def changed(random_: random.Random, schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema that differs in a field or two, as versions of one do."""
    fields = [dict(field) for field in schema["fields"]]
    for field in random_.sample(fields, random_.randint(0, len(fields))):
        if random_.random() < 0.5 and len(fields) > 1:
            fields.remove(field)
        else:
            field["type"] = kind_of(random_, field["name"])
            field.pop("default", None)
    known = {field["name"] for field in fields}
    fields += [field for field in record(random_)["fields"] if field["name"] not in known and random_.random() < 0.6]
    return {**schema, "fields": fields}


def accepted(client: SchemaRegistryClient, subject: str, schema: dict[str, Any]) -> bool:
    try:
        client.register_schema(subject, Schema(json.dumps(schema), "AVRO"))
    except SchemaRegistryError as error:
        if error.http_status_code == 409:
            return False
        raise
    return True


@pytest.mark.parametrize("level", ["backward", "forward", "full"])
def test_our_verdict_is_the_registrys(level: Compatibility, registry: EmbeddedRegistry) -> None:
    client, random_ = SchemaRegistryClient({"url": registry.url}), random.Random(7)
    verdicts = []
    for _ in range(40):
        before = record(random_)
        after = changed(random_, before)
        subject = f"compatibility-{uuid.uuid4().hex}"
        client.set_compatibility(subject, level.upper())
        client.register_schema(subject, Schema(json.dumps(before), "AVRO"))
        theirs = accepted(client, subject, after)
        old, new = (WriterSchema("AVRO", json.dumps(each), id=id_) for id_, each in ((1, before), (2, after)))
        problems = avro_problems(old, new, level)
        assert (not problems) == theirs, (before, after, problems)
        verdicts.append(theirs)
    assert {True, False} == set(verdicts)
