"""Whether a new schema version is to the one before what the topic asks for: backward, forward or full compatible.

The registry's own rule counts first: what it enforces was checked when the version was registered. Where it enforces
less, Avro schemas are compared by the rules of Avro's specification, and for the others the run is refused.
"""

import json
from collections.abc import Mapping

from avro.compatibility import ReaderWriterCompatibilityChecker, SchemaCompatibilityType
from avro.schema import make_avsc_object

from kafka_lake.ingest.context import Context
from kafka_lake.ingest.decode.avro.decoder import inlined
from kafka_lake.ingest.decode.by_schema.envelopes import Envelopes
from kafka_lake.ingest.decode.by_schema.registered import Registered
from kafka_lake.ingest.decode.changes import Changes
from kafka_lake.ingest.decode.decoder import Decoder
from kafka_lake.ingest.decode.key import Keyed
from kafka_lake.ingest.stage.schema_plan import SchemaRefusedError
from kafka_lake.ingest.topic_table import Compatibility
from kafka_lake.kafka.schemas import WriterSchema

_DIRECTIONS: Mapping[str, frozenset[str]] = {
    "none": frozenset(),
    "backward": frozenset({"backward"}),
    "forward": frozenset({"forward"}),
    "full": frozenset({"backward", "forward"}),
}


def refuse_incompatible(context: Context, before: Decoder, after: Decoder) -> None:
    """Stop a run whose records show a schema version for the first time that isn't what the topic asks for.

    Args:
        context: Of the run; its registry is asked for the level that it enforces.
        before: Knew the versions seen in earlier commits.
        after: Knows those of this one too.

    Raises:
        SchemaRefusedError: If a version isn't what the topic asks for; says which, and why.
        RegistryError: If the registry doesn't answer.
    """
    if problems := _problems(context, before, after):
        remedy = "Let the writer go back to the version before, or set another compatibility: in the topic's YAML."
        raise SchemaRefusedError(context.spec, problems, remedy)


def _problems(context: Context, before: Decoder, after: Decoder) -> list[str]:
    spec, registry = context.spec, context.connections.registry
    old, new = registered_values(before), registered_values(after)
    if spec.compatibility == "none" or old is None or new is None or registry is None:
        return []
    known = [writer.schema for _, writer in sorted(old.writers.items(), key=lambda each: each[0])]
    fresh = [w.schema for key, w in sorted(new.writers.items(), key=lambda each: each[0]) if key not in old.writers]
    if not known or not fresh:
        return []
    enforced = registry.compatibility(spec.value_subject)
    if promises(enforced, spec.compatibility):
        return []
    problems: list[str] = []
    for schema in fresh:
        if schema.kind == "AVRO" and known[-1].kind == "AVRO":
            problems += avro_problems(known[-1], schema, spec.compatibility)
        else:
            problems.append(
                f"{schema.label} is new, and the registry's compatibility of subject {spec.value_subject} is "
                f"{enforced}, which doesn't promise {spec.compatibility}"
            )
        known.append(schema)
    return problems


def promises(enforced: str, asked: Compatibility) -> bool:
    """Return whether a registry's level is at least as strict as another.

    >>> promises("FULL_TRANSITIVE", "backward"), promises("FORWARD", "backward")
    (True, False)
    """
    return _DIRECTIONS[asked] <= _DIRECTIONS.get(enforced.lower().removesuffix("_transitive"), frozenset())


def avro_problems(before: WriterSchema, after: WriterSchema, asked: Compatibility) -> list[str]:
    """Return why a new Avro schema isn't what is asked for, by the specification's rules of schema resolution.

    Args:
        before: The version before.
        after: The new version.
        asked: ``backward`` if readers of the new one must be able to read what the old one wrote, ``forward`` the
            other way round, ``full`` both.
    """
    pairs = {"backward": (after, before), "forward": (before, after)}
    problems = []
    for direction in sorted(_DIRECTIONS[asked]):
        reader, writer = (make_avsc_object(json.loads(inlined(each))) for each in pairs[direction])
        checker = ReaderWriterCompatibilityChecker()  # type: ignore[no-untyped-call]
        verdict = checker.get_compatibility(reader, writer)
        if verdict.compatibility is not SchemaCompatibilityType.compatible:
            why = "; ".join(sorted(verdict.messages)) or "the schemas don't resolve"
            problems.append(f"{after.label} is not {direction} compatible with {before.label}: {why}")
    return problems


def registered_values(decoder: Decoder) -> Registered | None:
    """Return what decodes values by the schemas of a registry; None if nothing does."""
    part = decoder.rows if isinstance(decoder, Changes) else decoder
    part = part.value if isinstance(part, Keyed) else part
    if isinstance(part, Envelopes):
        return part.of_values()
    return part if isinstance(part, Registered) else None
