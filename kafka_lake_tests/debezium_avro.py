"""Schemas and records as Debezium 3.6 wrote them, with Apicurio's Avro converter for Kafka Connect."""

import json
from collections.abc import Mapping
from typing import Any

SPACE = "shop.public.customers"
ENUM = {
    "type": "string",
    "connect.version": 1,
    "connect.parameters": {
        "allowed": "true,first,first_in_data_collection,last_in_data_collection,last,false,incremental"
    },
    "connect.default": "false",
    "connect.name": "io.debezium.data.Enum",
}
SOURCE = {
    "type": "record",
    "name": "Source",
    "namespace": "io.debezium.connector.postgresql",
    "fields": [
        {"name": "version", "type": "string"},
        {"name": "connector", "type": "string"},
        {"name": "name", "type": "string"},
        {"name": "ts_ms", "type": "long"},
        {"name": "snapshot", "type": [ENUM, "null"], "default": "false"},
        {"name": "db", "type": "string"},
        {"name": "sequence", "type": ["null", "string"], "default": None},
        {"name": "ts_us", "type": ["null", "long"], "default": None},
        {"name": "ts_ns", "type": ["null", "long"], "default": None},
        {"name": "schema", "type": "string"},
        {"name": "table", "type": "string"},
        {"name": "txId", "type": ["null", "long"], "default": None},
        {"name": "lsn", "type": ["null", "long"], "default": None},
        {"name": "xmin", "type": ["null", "long"], "default": None},
        {"name": "origin", "type": ["null", "string"], "default": None},
        {"name": "origin_lsn", "type": ["null", "long"], "default": None},
    ],
    "connect.version": 1,
    "connect.name": "io.debezium.connector.postgresql.Source",
}
BLOCK = {
    "type": "record",
    "name": "block",
    "namespace": "event",
    "fields": [
        {"name": "id", "type": "string"},
        {"name": "total_order", "type": "long"},
        {"name": "data_collection_order", "type": "long"},
    ],
    "connect.version": 1,
    "connect.name": "event.block",
}
HEARTBEAT = {
    "type": "record",
    "name": "Heartbeat",
    "namespace": "io.debezium.connector.common",
    "fields": [{"name": "ts_ms", "type": "long"}],
    "connect.version": 1,
    "connect.name": "io.debezium.connector.common.Heartbeat",
}
SERVER = {
    "type": "record",
    "name": "ServerNameKey",
    "namespace": "io.debezium.connector.common",
    "fields": [{"name": "serverName", "type": "string"}],
    "connect.version": 1,
    "connect.name": "io.debezium.connector.common.ServerNameKey",
}
TRANSACTION = {
    "type": "record",
    "name": "TransactionMetadataValue",
    "namespace": "io.debezium.connector.common",
    "fields": [
        {"name": "status", "type": "string"},
        {"name": "id", "type": "string"},
        {"name": "event_count", "type": ["null", "long"], "default": None},
        {"name": "ts_ms", "type": "long"},
    ],
    "connect.version": 1,
    "connect.name": "io.debezium.connector.common.TransactionMetadataValue",
}
SCHEMA_CHANGE = {
    "type": "record",
    "name": "SchemaChangeValue",
    "namespace": "io.debezium.connector.mysql",
    "fields": [
        {"name": "ts_ms", "type": "long"},
        {"name": "databaseName", "type": ["null", "string"], "default": None},
        {"name": "ddl", "type": ["null", "string"], "default": None},
    ],
    "connect.version": 1,
    "connect.name": "io.debezium.connector.mysql.SchemaChangeValue",
}


def named(kind: str, name: str, **more: Any) -> dict[str, Any]:
    """Return a type that has a name in Kafka Connect."""
    return {"type": kind, "connect.version": 1, "connect.name": name, **more}


def optional(kind: Any) -> list[Any]:
    """Return the type of a column that may be null."""
    return ["null", kind]


DECIMAL = named(
    "bytes",
    "org.apache.kafka.connect.data.Decimal",
    scale=5,
    precision=20,
    logicalType="decimal",
    **{"connect.parameters": {"scale": "5", "connect.decimal.precision": "20"}},
)
VARIABLE = {
    "type": "record",
    "name": "VariableScaleDecimal",
    "namespace": "io.debezium.data",
    "fields": [{"name": "scale", "type": "int"}, {"name": "value", "type": "bytes"}],
    "connect.version": 1,
    "connect.doc": "Variable scaled decimal",
    "connect.name": "io.debezium.data.VariableScaleDecimal",
}


def key_schema(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of records' keys."""
    fields = [{"name": name, "type": kind} for name, kind in columns.items()]
    return {"type": "record", "name": "Key", "namespace": SPACE, "fields": fields, "connect.name": f"{SPACE}.Key"}


def envelope_schema(columns: Mapping[str, Any], source: Mapping[str, Any] = SOURCE) -> dict[str, Any]:
    """Return the schema of envelopes around rows of columns."""
    fields = [
        {"name": name, "type": kind, **({"default": None} if isinstance(kind, list) else {})}
        for name, kind in columns.items()
    ]
    row = {"type": "record", "name": "Value", "fields": fields, "connect.name": f"{SPACE}.Value"}
    times = [{"name": name, "type": ["null", "long"], "default": None} for name in ("ts_ms", "ts_us", "ts_ns")]
    return {
        "type": "record",
        "name": "Envelope",
        "namespace": SPACE,
        "fields": [
            {"name": "before", "type": ["null", row], "default": None},
            {"name": "after", "type": ["null", "Value"], "default": None},
            {"name": "source", "type": source},
            {"name": "transaction", "type": ["null", BLOCK], "default": None},
            {"name": "op", "type": "string"},
            *times,
        ],
        "connect.version": 2,
        "connect.name": f"{SPACE}.Envelope",
    }


def envelope(
    op: str, lsn: int | None, after: Any = None, before: Any = None, commit: int | None = None, **source: Any
) -> dict[str, Any]:
    """Return an envelope of the connector of PostgreSQL."""
    reported = {
        "version": "3.6.3.Final",
        "connector": "postgresql",
        "name": "shop",
        "ts_ms": 1,
        "snapshot": "false",
        "db": "shop",
        "schema": "public",
        "table": "customers",
        "lsn": lsn,
        "sequence": json.dumps([commit and str(commit), str(lsn)]),
        **source,
    }
    return {"before": before, "after": after, "source": reported, "op": op, "ts_ms": 1, "transaction": None}
