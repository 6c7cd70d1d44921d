"""Values in a registry's wire format: each goes to its schema's decoder, and what is unknown is counted."""

import json
import pickle
import random
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as T

from kafka_lake.engine.interop import packed
from kafka_lake.errors import UnknownSchemaError
from kafka_lake.formats.avro.task.decoder import AvroDecoder
from kafka_lake.formats.columns import Target
from kafka_lake.formats.decoder import Keyed
from kafka_lake.formats.json.task.decoder import json_decoder
from kafka_lake.formats.registered import Registered
from kafka_lake.formats.task import batches as task
from kafka_lake.formats.task.decoded import NOTHING, Observed
from kafka_lake.formats.task.decoders import unpack_decoder
from kafka_lake.formats.task.registered import RegisteredDecoder, key_of, name_of
from kafka_lake.kafka.registry import WriterSchema

ID = (("id", ("long",), ("id",), False, "bigint"), ("name", ("string",), ("name",), False, "string"))
GLUE = bytes.fromhex("0300b7b4a7f09c964e4aa687fb5de9ef0c63")


def avro(label: str, **fields: str) -> dict[str, Any]:
    schema = {"type": "record", "name": "R", "fields": [{"name": n, "type": t} for n, t in fields.items()]}
    reported = {"schema": json.dumps(schema), "columns": ID, "label": label}
    return {"decoder": pickle.dumps(AvroDecoder), **reported}


def decoder(decoders: list[Any], schemas: dict[Any, int], **reported: Any) -> Any:
    rest = {"refused": {}, "protobuf": (), "registry_kind": "confluent", **reported}
    return unpack_decoder(
        {"decoder": pickle.dumps(RegisteredDecoder), "columns": ID, "decoders": decoders, "schemas": schemas, **rest}
    )


JSON = {"decoder": pickle.dumps(json_decoder), "columns": ID, "rules": {"infer": True}, "max_bytes": None}


def framed(id_: int, payload: bytes) -> bytes:
    return b"\x00" + id_.to_bytes(4, "big") + payload


def test_values_of_several_schemas_come_in_their_order() -> None:
    mine = decoder([avro("schema id 7", id="int"), avro("schema id 8", name="string", id="long"), JSON],
                   {(7, b""): 0, (8, b""): 1, (2**31, b""): 2, (9, b""): 2})  # fmt: skip
    kinds = {
        framed(7, b"\x02"): {"id": 1, "name": None},
        framed(8, b"\x02a\x04"): {"id": 2, "name": "a"},
        framed(2**31, b'{"id": 3}'): {"id": 3, "name": None},
        framed(9, b'{"id": 4, "name": "x", "more": true}'): {"id": 4, "name": "x"},
    }
    values = random.Random(3).choices([*kinds, None], k=200)
    found = mine.decode(pa.array([None, *values, b"\x00"], pa.binary()).slice(1, 200))
    assert found.rows.to_pylist() == [value and kinds[value] for value in values]
    assert found.error_class.null_count == 200
    counts = {7: 0, 8: 1, 2**31: 2, 9: 3}
    assert found.seen.schemas == {f"{id_}": values.count(list(kinds)[n]) for id_, n in counts.items()}
    assert found.seen.new_fields == {"new": {"more": "boolean"}}


def test_what_can_not_be_decoded_says_why_in_its_place() -> None:
    mine = decoder([avro("schema id 7", id="int")], {(7, b""): 0}, max_bytes=20,
                   refused={(8, b""): "The registry has no schema id 8"})  # fmt: skip
    values = [b"{}", b"", b"\x00\x00\x00\x00", framed(7, b"\x02"), framed(7, b"\x80"), None, framed(8, b""),
              framed(9, b"x"), GLUE, b"x" * 21]  # fmt: skip
    found = mine.decode(pa.array(values, pa.binary()))
    assert found.rows.to_pylist() == [{"id": 1, "name": None} if at == 3 else None for at in range(len(values))]
    said = zip(found.error_class.to_pylist(), found.error_message.to_pylist(), strict=True)
    assert list(said) == [
        ("no_schema_id", "The value begins with 0x7B7D."),
        ("no_schema_id", "The value begins with 0x."),
        ("no_schema_id", "The value begins with 0x00000000."),
        (None, None),
        ("malformed", "The bytes don't decode with schema id 7."),
        (None, None),
        ("unknown_schema", "The registry has no schema id 8."),
        ("unknown_schema", "The registry has no schema id 9."),
        ("unknown_schema", "The registry has no schema version b7b4a7f0-9c96-4e4a-a687-fb5de9ef0c63."),
        ("too_large", "The value has 21 bytes, the limit is 20."),
    ]
    assert found.seen.schemas == {"7": 2, "9": 1, "version b7b4a7f0-9c96-4e4a-a687-fb5de9ef0c63": 1}


def test_messages_of_a_protobuf_schema_are_told_by_their_prefix() -> None:
    values = [framed(5, b"\x00\x02"), framed(5, b"\x04\x02\x00\x06"), framed(5, b"\x02\x08\x04"), framed(5, b"\x80"),
              framed(5, b""), framed(5, b"\x04\x02\x00\x08")]  # fmt: skip
    # Two Avro decoders stand for two messages.
    mine = decoder([avro("a", id="int"), avro("b", id="int")], {(5, b"\x00"): 0, (5, b"\x04\x02\x00"): 1},
                   protobuf=(5,))  # fmt: skip
    found = mine.decode(pa.array(values, pa.binary()))
    assert [row and row["id"] for row in found.rows.to_pylist()] == [1, 3, None, None, None, 4]
    assert found.error_class.to_pylist() == [None, None, *["unknown_schema"] * 3, None]
    assert found.error_message[2].as_py() == "Schema id 5 has no message with the indexes 0208 that can be read."
    assert found.seen.schemas == {"5:00": 1, "5:040200": 2, "5:0208": 1, "5": 2}


def test_strangers_are_reported_the_most_frequent_alone() -> None:
    values = [framed(id_, b"") for id_ in range(1, 1001)] + [framed(77_777, b"")] * 5
    found = decoder([], {}).decode(pa.array(values, pa.binary()))
    assert len(found.seen.schemas) == 200
    assert found.seen.schemas["77777"] == 5
    assert set(found.error_class.to_pylist()) == {"unknown_schema"}
    # The registry may have the schemas that aren't reported.
    messages = Counter(message.split(" ", 3)[-1] for message in found.error_message.to_pylist())
    assert messages["wasn't looked up: its batch has more than 200 unknown schemas."] == 801


@pytest.mark.parametrize("key", [(7, b""), (2**32 - 1, b"\x04\x02\x00"), ("version 4c1f", b"\x07")])
def test_a_schema_is_found_by_its_name(key: tuple[int | str, bytes]) -> None:
    assert key_of(name_of(key)) == key


SCHEMAS = {
    7: WriterSchema("AVRO", '{"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]}', id=7),
    9: WriterSchema("JSON", '{"type": "object", "properties": {"id": {"type": "integer"}}}', id=9),
}
NOWHERE = Target(T.StructType([]))


def fetch(id_: int) -> WriterSchema:
    if id_ not in SCHEMAS:
        raise UnknownSchemaError(f"no schema {id_}", "Ask for others.")
    return SCHEMAS[id_]


def counts(**seen: Any) -> Observed:
    return replace(NOTHING, **seen)


def test_a_pass_that_met_a_new_schema_is_done_again_and_none_else() -> None:
    records: Any = None
    reported = counts(schemas={"7": 3, "8": 1})
    learned = Registered("confluent", fetch, "confluent").learn(reported, records, NOWHERE)
    assert learned is not None
    assert learned.again
    known: Any = learned.decoder
    assert known.schema_counts(reported) == {"schema id 7": 3}
    assert known.snapshot_properties() == {"kafka-lake.schema-ids": "7"}
    assert known.for_tasks(NOWHERE, None)["refused"] == {(8, b""): "The registry has no schema id 8"}
    assert known.learn(reported, records, NOWHERE) is None
    assert known.learn(NOTHING, records, NOWHERE) is None


def test_schema_of_another_format_repeats_the_pass_once() -> None:
    records: Any = None
    # Tasks report that the registry doesn't have it.
    learned = Registered("avro", fetch, "confluent").learn(counts(schemas={"9": 2}), records, NOWHERE)
    assert learned is not None
    assert learned.again
    known: Any = learned.decoder
    assert known.for_tasks(NOWHERE, None)["refused"] == {(9, b""): "schema id 9 is JSON, the topic's format is avro"}
    assert known.learn(counts(schemas={"9": 2}), records, NOWHERE) is None


def test_fields_beside_a_json_schema_are_learned_from_what_tasks_report() -> None:
    records: Any = None
    known = Registered("confluent", fetch, "confluent").known([7, 9])
    learned = known.learn(counts(schemas={"9": 1}, new_fields={"new": {"more": "long"}}), records, NOWHERE)
    assert learned is not None
    assert not learned.again
    assert [fields.simpleString() for _, fields in learned.decoder.incoming()][-1] == "struct<more:bigint>"


def test_what_keys_have_shown_is_theirs_alone() -> None:
    records: Any = None
    keyed = Keyed(Registered("avro", fetch, "confluent"), Registered("avro", fetch, "confluent", part="key"), "_key")
    reported = counts(key=counts(schemas={"7": 2}))
    learned = keyed.learn(reported, records, NOWHERE)
    assert learned is not None
    assert learned.again
    assert learned.decoder.snapshot_properties() == {"kafka-lake.key-schema-ids": "7"}
    assert learned.decoder.schema_counts(reported) == {"schema id 7 of the key": 2}


def test_value_is_read_beside_a_header_of_another_registry() -> None:
    known, value = Registered("confluent", fetch, "confluent").known([7]), framed(7, b"\x02")
    forwarded, target = ("apicurio.value.globalId", (9).to_bytes(8)), Target(T.StructType().add("id", "long"))
    header = pa.struct({"key": pa.string(), "value": pa.binary()})
    headers = pa.array([[dict(zip(("key", "value"), forwarded, strict=True))]], pa.list_(header))
    batch = pa.RecordBatch.from_pydict({"value": pa.array([value], pa.binary()), "headers": headers})
    found = unpack_decoder(known.for_tasks(target, None)).decode_records(batch)
    assert (found.rows.to_pylist(), found.error_class.to_pylist()) == ([{"id": 1}], [None])
    assert known.framed(value, [forwarded]) == (7, b"\x02")
    assert known.fields_of(value, [forwarded]) == ("id",)


@pytest.mark.processes
def test_what_tasks_are_told_travels_without_this_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    work = (
        Registered("confluent", fetch, "confluent")
        .known([7, 9])
        .for_tasks(Target(T.StructType().add("id", "long")), None)
    )
    Path("work").write_bytes(pickle.dumps((packed(task.decode), work)))
    record = {"key": [None], "value": [framed(7, b"\x02")], "partition": [0], "offset": [0]}
    script = f"""
import pickle, sys
sys.modules["kafka_lake"] = None
import pyarrow
does, work = pickle.loads(open("work", "rb").read())
(batch,) = pickle.loads(does)(work)([pyarrow.RecordBatch.from_pydict({record})])
print(batch.column("decoded").to_pylist(), batch.column("error_message").to_pylist())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[{'id': 1}] [None]"
