"""What the settings of a topic's tables ask for and can't be. Each group has refused by itself what it can."""

import re
from collections.abc import Iterator, Sequence

from kafka_lake.config.rules import rule_problems
from kafka_lake.engine.task import METADATA_COLUMN
from kafka_lake.errors import ConfigurationError
from kafka_lake.formats.base import format_named, formats_with_schema_ids
from kafka_lake.schema.names import name_problem
from kafka_lake.spec.ddl import check_ddl, parsed_ddl
from kafka_lake.spec.layout import parse_partition_field, parse_sort_field
from kafka_lake.spec.settings import Problem
from kafka_lake.spec.topic_table import TopicTable

_ORDERS = re.compile("byte|short|integer|long|float|double|decimal|date|timestamp")
_OF_HISTORIES = ("valid_from", "valid_to", "_event", "_is_deleted")


def table_problems(spec: TopicTable) -> Iterator[Problem]:
    """Give what is wrong with a table of a topic, and where in its settings."""
    try:
        for text in spec.partition_by:
            parse_partition_field(text)
        for text in spec.sort_by:
            parse_sort_field(text)
        declared = None if spec.schema is None else check_ddl(spec.schema)
    except ConfigurationError as error:
        yield (), str(error)
        return
    yield from _column_problems(spec, declared)
    yield from _excluded_problems(spec, declared)
    if spec.is_keyed:
        yield from _keyed_problems(spec, declared)
    for text in rule_problems(spec, declared):
        yield ("rules",), text
    if (
        spec.cluster is None
        and spec.namespace == "kafka"
        and any(topic_spec.topic == spec.table for topic_spec in spec.each_topic)
    ):
        why = f"topic {spec.table} and its table would be the same asset, kafka/{spec.table}"
        yield ("name",), f"{why}. Choose another name"
    if spec.table_properties.get("write.distribution-mode") == "range":
        why = "write.distribution-mode range reads the topic twice, which the audit refuses. Use hash or none"
        yield ("properties",), why


def _column_problems(spec: TopicTable, declared: Sequence[str] | None) -> Iterator[Problem]:
    """Give what is wrong with a table's columns."""
    format_ = format_named(spec.format)
    if declared is not None and not format_.takes_columns:
        yield ("columns",), f"is for format json; {spec.format} brings its own columns. Remove it"
    if declared is not None and METADATA_COLUMN in map(str.lower, declared):
        yield ("columns",), f"has {METADATA_COLUMN}, which is the metadata column. Remove it"
    if spec.key_format is not None and spec.key_column == METADATA_COLUMN:
        yield (), f"key: column: is {spec.key_column}, which is the metadata column. Choose another name"
    if declared is not None and spec.key_format is not None and spec.key_column.lower() in map(str.lower, declared):
        why = f"has {spec.key_column}, which is also the column of the key. Rename the key's column with key: column:"
        yield ("columns",), why
    if declared is None and spec.transform is None:
        yield from _name_problems(spec)
    if declared is not None and spec.on_incompatible == "new_column":
        yield ("evolution", "on_incompatible"), "new_column needs inferred columns, and columns: declares them"
    if spec.transform is not None:
        if ":" not in spec.transform:
            yield ("transform",), f"{spec.transform!r} is not a reference. Write module:function"
        elif declared is None and format_.infers_columns:
            yield ("transform",), "gets columns that aren't known. Declare them with columns:"


def _name_problems(spec: TopicTable) -> Iterator[Problem]:
    """Give the names of fields where settings name inferred columns."""
    nulls = spec.ignore_null_updates
    for place, names in {
        ("write", "key"): spec.key,
        ("write", "order_by"): spec.order_by,
        ("write", "track"): spec.track,
        ("write", "ignore_null_updates"): () if isinstance(nulls, bool) else nulls,
        ("partition_by",): [parse_partition_field(text)[0] for text in spec.partition_by],
        ("sort_by",): [parse_sort_field(text)[0] for text in spec.sort_by],
    }.items():
        nested = place[0] != "write"
        yield from ((place, problem) for name in names if (problem := name_problem(name, nested)))


def _excluded_problems(spec: TopicTable, declared: Sequence[str] | None) -> Iterator[Problem]:
    """Give what is wrong with the fields that a table has no column for."""
    place, named = ("exclude_fields",), spec.except_columns
    if not named:
        return
    for setting, columns in _needed(spec).items():
        if found := [name for name in named if name.lower() in {column.lower() for column in columns}]:
            yield place, f"{', '.join(found)} is in {setting}, which the table needs. Remove it from one of them"
    if spec.transform is not None:
        yield place, "the transform returns the columns. Remove these in the transform"
    if format_named(spec.format).has_one_column:
        yield place, f"values in format {spec.format} are one column"
    if declared is not None and (missing := [name for name in named if name not in declared]):
        yield place, f"{', '.join(missing)} isn't in columns:, so the table has no column for it. Remove it"


def _needed(spec: TopicTable) -> dict[str, Sequence[str]]:
    nulls = spec.ignore_null_updates
    return {
        "write: key": spec.key,
        "write: order_by": spec.order_by,
        "write: ignore_null_updates": () if isinstance(nulls, bool) else nulls,
        "key: column": [spec.key_column] if spec.key_format is not None else [],
        "the metadata column": [METADATA_COLUMN],
        "partition_by": [parse_partition_field(text)[0] for text in spec.partition_by],
        "sort_by": [parse_sort_field(text)[0] for text in spec.sort_by],
    }


def _keyed_problems(spec: TopicTable, declared: Sequence[str] | None) -> Iterator[Problem]:
    """Give what can't be in a table whose rows change by key."""
    if spec.transform is not None:
        yield ("transform",), f"can't be combined with write: {spec.write} yet. Use a view, or a derived table"
    if spec.has_envelope and spec.key_format is not None:
        yield ("write",), "an envelope reads keys itself. Remove the topic's key:"
    if spec.has_source_order and spec.order_by:
        yield ("write", "order_by"), f"envelope {spec.envelope} already has the order of its changes. Remove it"
    named = () if isinstance(spec.ignore_null_updates, bool) else spec.ignore_null_updates
    if spec.has_envelope and spec.ignore_null_updates:
        yield ("write", "ignore_null_updates"), f"in envelope {spec.envelope}, a null is a value. Remove it"
    if always := [name for name in named if name in (*spec.key, *spec.order_by)]:
        yield ("write", "ignore_null_updates"), f"{', '.join(always)} is in key: or order_by:, which every change has"
    yield from _snapshot_problems(spec)
    if never := [name for name in spec.track if name in spec.key]:
        yield ("write", "track"), f"{', '.join(never)} is in key:, which identifies rows and never changes"
    if spec.topics:
        why = "offsets of two topics don't order the changes of a key. Give each topic a table"
        yield ("write",), f"{spec.write} can't be combined with topics: yet, since {why}"
    if declared is not None:
        yield from _undeclared(spec, declared)


def _snapshot_problems(spec: TopicTable) -> Iterator[Problem]:
    """Give what can't be, of snapshots and truncates of a source."""
    if spec.replaces_by_snapshot and spec.envelope != "debezium":
        yield ("write", "on_snapshot"), "replace needs envelope: debezium, which marks the end of a snapshot"
    if spec.replaces_by_snapshot and (spec.marks_deletes or spec.ignores_deletes):
        yield ("write", "on_snapshot"), f"replace removes rows, and deletes: {spec.deletes} keeps them"
    if spec.replaces_by_snapshot and spec.has_routes:
        yield ("write", "on_snapshot"), "replace can't be combined with tables: yet"
    if spec.applies_truncates and spec.marks_deletes:
        yield ("write", "on_truncate"), "apply removes rows, and deletes: soft keeps them"
    if spec.applies_truncates and spec.order_by:
        why = "apply needs the order of Kafka or of the source: a truncate has no order_by value"
        yield ("write", "on_truncate"), why


def _undeclared(spec: TopicTable, declared: Sequence[str]) -> Iterator[Problem]:
    """Give the settings that name columns which no record can have, and declared columns that are the table's own."""
    known = [*declared, *([spec.key_column] if spec.key_format is not None else [])]
    for setting in ("key", "order_by", "ignore_null_updates", "track"):
        given = getattr(spec, setting)
        if unknown := [name for name in (() if isinstance(given, bool) else given) if name not in known]:
            there = f"isn't in columns:, which are {', '.join(known)}"
            yield ("write", setting), f"{', '.join(unknown)} {there}"
    kinds = {field["name"]: field["type"] for field in parsed_ddl(spec.schema or "")["fields"]}
    if wrong := [f"{n} ({kinds[n]})" for n in spec.order_by if n in kinds and not _ORDERS.match(str(kinds[n]))]:
        why = "is neither a time nor a number. Declare it as timestamp, timestamp_ntz, date, bigint or decimal"
        yield ("write", "order_by"), f"{', '.join(wrong)} {why}"
    own = _OF_HISTORIES if spec.has_versions else ("_is_deleted",) if spec.marks_deletes else ()
    if taken := [name for name in declared if name.lower() in own]:
        yield ("columns",), f"{', '.join(taken)} is a column that kafka_lake adds. Give your column another name"


def routing_problems(spec: TopicTable) -> Iterator[Problem]:
    """Give what of a topic's tables can't be together."""
    by = spec.route_by
    format_ = format_named(spec.format)
    if not format_.is_json:
        if any(route.when.field for route in spec.routes):
            yield ("tables",), f"where: field: is for JSON, and format is {spec.format}. Use header: or sql:"
        if by is not None and not by.is_by_schema:
            yield ("tables_by",), f"{by.kind}: is for JSON, and format is {spec.format}. Use schema_name:"
    if any(route.when.schema for route in spec.routes) or (by is not None and by.is_by_schema):
        place = "tables" if any(route.when.schema for route in spec.routes) else "tables_by"
        if not format_.has_schema_ids:
            why = f"schema names need {' or '.join(formats_with_schema_ids())}, and format is {spec.format}"
            yield (place,), why
        elif spec.schema_file is not None:
            yield (place,), "schema names come from a registry, and format: schema: is a file"
    if spec.where is not None and spec.unmatched == "dead_letter" and spec.dead_letters == "skip":
        yield ("unmatched",), "dead_letter with dead_letters: skip loses the records' values. Write ignore"
    yield from _shared(spec)


def _shared(spec: TopicTable) -> Iterator[Problem]:
    owners: dict[tuple[str, ...], int] = {}
    for number, table in enumerate(spec.tables):
        # Some catalogs know no upper case.
        for name in dict.fromkeys(tuple(part.lower() for part in identifier) for identifier in table.identifiers):
            first = owners.setdefault(name, number)
            if first != number:
                other = spec.tables[first].table
                both = f"{other} and {table.table}" if other != table.table else f"{table.table} twice"
                why = f"table {'.'.join(name)} would belong to {both}. To combine values, list them in equals:"
                yield ("tables",), why


def maintenance_problems(spec: TopicTable, topic: TopicTable, complete: bool) -> Iterator[str]:
    """Give what the maintenance of a table asks for and can't be."""
    policy = spec.maintenance
    if spec.is_keyed and policy.verify is not None and policy.verify.since is not None:
        yield f"verify: since: can't be combined with write: {spec.write}. Set verify: without it here."
    if policy.row_retention is None:
        return
    of_cluster = " Set row_retention: null here, or remove it from the cluster's document." if complete else ""
    if spec.is_keyed:
        why = f"an expired key would look like a new key in a table with write: {spec.write}"
        yield f"row_retention: {why}.{of_cluster}"
    if topic.has_routes or bool(spec.topics):
        setting = "topics:" if bool(spec.topics) else "tables:" if topic.route_by is None else "tables_by:"
        yield f"row_retention: can't be combined with {setting} yet.{of_cluster}"
