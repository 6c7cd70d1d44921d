"""Where schema ids are: a batch is framed as each of its records is alone, and no bytes stop either."""

import zlib
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafka_lake.formats.task.error_classes import MALFORMED, NO_SCHEMA_ID, TOO_LARGE
from kafka_lake.formats.task.framing import (
    FRAMINGS,
    ID_HEADERS,
    framed,
    frames_of,
    framing_of,
    prefixed,
    with_header_ids,
)

GUID = UUID(int=0x0123456789ABCDEF0123456789ABCDEF)
HEADERS = pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()}))
STARTS = [b"\x00", b"\x01", b"\x03\x00", b"\x03\x05", b"\x00" * 5, b"\xffglobalId", b""]
NAMES = ["__value_schema_id", "__key_schema_id", "apicurio.value.globalId", "apicurio.value.contentId", "trace"]
VALUES = st.one_of(
    st.none(),
    st.builds(lambda start, rest: start + rest, st.sampled_from(STARTS), st.binary(max_size=24)),
    st.builds(
        lambda id_, content: b"\x03\x05" + id_ + zlib.compress(content),
        st.binary(min_size=16, max_size=16),
        st.binary(),
    ),
)
GIVEN = st.one_of(
    st.none(),
    st.lists(
        st.tuples(
            st.sampled_from(NAMES),
            st.one_of(st.none(), st.binary(max_size=20), st.just(b"\x01" + GUID.bytes), st.just(b"\x00" * 7 + b"\x05")),
        ),
        max_size=3,
    ),
)


def batch_of(records: list[tuple[bytes | None, Any]], kind: str = "") -> tuple[list[Any], dict[int, Any]]:
    """Return the id and content of each record, framed as one batch that is a slice of a greater one."""
    around = [(b"\x00\x00\x00\x00\x09", [("__value_schema_id", b"\x00\x00\x00\x00\x08")])]
    values = pa.array([value for value, _ in around + records + around], pa.binary()).slice(1, len(records))
    given_headers = [h if h is None else [{"key": k, "value": v} for k, v in h] for _, h in around + records + around]
    headers = pa.array(given_headers, HEADERS).slice(1, len(records))
    errors: dict[int, Any] = {}
    places = np.flatnonzero(np.array([value is not None for value, _ in records], dtype=bool))
    values, places = with_header_ids(values, headers, places, part="value", registry_kind=kind, plain=(), errors=errors)
    heads, frames, rest = frames_of(values, places, None, errors)
    found: list[Any] = [None] * len(records)
    for id_, group in frames:
        payloads = heads.payloads(group, np.full(len(group), framing_of(id_).size))
        for place, content in zip(group.tolist(), payloads.to_pylist(), strict=True):
            found[place] = id_, content
    assert not set(rest.tolist()) & errors.keys()
    return found, errors


def alone(value: bytes, headers: Any, kind: str) -> tuple[Any, str | None]:
    """Return the id and content of one record, or the message of its error."""
    try:
        return framed(prefixed(value, headers, "value", kind)), None
    except ValueError as error:
        return None, str(error)


@settings(deadline=None)
@given(st.lists(st.tuples(VALUES, GIVEN), max_size=8), st.sampled_from(list(ID_HEADERS)))
def test_a_batch_is_framed_as_its_records_are(records: list[tuple[bytes | None, Any]], kind: str) -> None:
    found, errors = batch_of(records, kind)
    for place, (value, headers) in enumerate(records):
        # Of headers of several kinds, no serializer writes more than one.
        if value is not None and len({name for name, _ in headers or () if name not in NAMES[1::3]}) < 2:
            assert (found[place], errors.get(place, (None, None))[1]) == alone(value, headers, kind)


@pytest.mark.parametrize(
    ("value", "id_", "content"),
    [
        (b"\x00\x00\x00\x00\x07x", 7, b"x"),
        (b"\x00\xff\xff\xff\xff", 2**32 - 1, b""),
        (b"\x01" + GUID.bytes + b"x", f"guid {GUID}", b"x"),
        (b"\x03\x00" + GUID.bytes + b"x", f"version {GUID}", b"x"),
        (b"\x03\x05" + GUID.bytes + zlib.compress(b"x"), f"version {GUID}", b"x"),
        (b"\x00" * 8 + b"\x07x", "8-byte id 7", b"x"),
    ],
)
def test_each_wire_format_has_its_ids(value: bytes, id_: int | str, content: bytes) -> None:
    assert framed(value) == (id_, content)
    assert batch_of([(value, None), (b"{}", None)])[0] == [(id_, content), None]
    assert framing_of(id_) in FRAMINGS
    assert framed(value[: framing_of(id_).size - 1]) is None


def test_a_bomb_is_too_large_and_its_neighbours_are_not() -> None:
    bomb = b"\x03\x05" + GUID.bytes + zlib.compress(bytes(10_000_000))
    errors: dict[int, Any] = {}
    values = pa.array([bomb, b"\x00\x00\x00\x00\x07x", bomb[:-1]], pa.binary())
    _, frames, rest = frames_of(values, np.arange(3), 1000, errors)
    assert [(id_, places.tolist()) for id_, places in frames] == [(7, [1])]
    assert len(rest) == 0
    assert errors[0] == errors[2] == (TOO_LARGE, "The content has more than 1000 bytes uncompressed.")
    errors = {}
    frames_of(values, np.arange(3), None, errors)
    assert (errors.keys(), errors[2][0]) == ({2}, MALFORMED)


def test_batch_that_is_too_large_uncompressed_says_so() -> None:
    value, errors = b"\x03\x05" + GUID.bytes + zlib.compress(bytes(600)), dict[int, Any]()
    _, frames, _ = frames_of(pa.array([value] * 3, pa.binary()), np.arange(3), 1000, errors, batch_limit=1500)
    assert [places.tolist() for _, places in frames] == [[0, 1]]
    message = "The values of its batch have more than 1500 bytes uncompressed."
    assert errors == {2: (TOO_LARGE, message)}


APICURIO_ID, CONFLUENT_ID = ("apicurio.value.contentId", (9).to_bytes(8)), ("__value_schema_id", b"\x01" + GUID.bytes)


@pytest.mark.parametrize(
    ("kind", "header", "id_"),
    [
        ("confluent", APICURIO_ID, 7),
        ("confluent", ("apicurio.value.globalId", b"damaged"), 7),
        ("confluent", CONFLUENT_ID, f"guid {GUID}"),
        ("apicurio", CONFLUENT_ID, 7),
        ("apicurio", APICURIO_ID, "contentId 9"),
        ("glue", APICURIO_ID, 7),
        ("glue", CONFLUENT_ID, 7),
    ],
)
def test_headers_of_another_registry_do_not_count(kind: str, header: tuple[str, bytes], id_: int | str) -> None:
    value = b"\x00\x00\x00\x00\x07content"
    (found,), errors = batch_of([(value, [header])], kind)
    assert (found, None) == alone(value, [header], kind)
    assert (found[0], errors) == (id_, {})


def test_a_damaged_header_is_shown_in_part() -> None:
    found, errors = batch_of([(b"x", [("apicurio.value.globalId", b"a" * 500)])])
    assert found == [None]
    shown = "61" * 24
    assert errors == {
        0: (NO_SCHEMA_ID, f"The header apicurio.value.globalId has no schema id: its value is 0x{shown}.")
    }


def test_record_with_two_headers_of_ids_is_read_alike_everywhere() -> None:
    content_id = ("apicurio.value.contentId", (9).to_bytes(8))
    confluent = ("__value_schema_id", b"\x00" + (7).to_bytes(4))
    for headers in ([content_id, confluent], [confluent, content_id]):
        found, _ = alone(b"content", headers, "")
        values, errors = pa.array([b"content"], pa.binary()), {}
        listed = pa.array([[{"key": key, "value": value} for key, value in headers]], HEADERS)
        made, _ = with_header_ids(
            values, listed, np.array([0]), part="value", registry_kind="", plain=(), errors=errors
        )
        assert framed(made[0].as_py()) == found
        assert not errors
