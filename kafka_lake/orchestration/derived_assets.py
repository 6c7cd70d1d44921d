"""A derived table in the asset graph: an asset below the tables that it is made from, with its checks."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import Field

from kafka_lake.common.text import block, plain
from kafka_lake.config.derived_table import DerivedTable, Write
from kafka_lake.errors import AuditFailedError
from kafka_lake.orchestration.assets import Presentation
from kafka_lake.orchestration.checks import rule_check_spec
from kafka_lake.orchestration.heartbeat import heartbeat
from kafka_lake.orchestration.keys import default_key, key_of, op_name, pool_name
from kafka_lake.orchestration.metadata import SPEC, metadata_of, table_address, table_name
from kafka_lake.orchestration.steps import as_failures, run_choices

if TYPE_CHECKING:
    from kafka_lake.catalog.lake_catalog import LakeCatalog
    from kafka_lake.derived.engine import DeriveReport

DERIVED_TAG = "kafka_lake/derived_table"
"""Tag of the assets of derived tables; a run that the sensor requests has it with the table's name."""
AUDIT = "audit"
_ROW_WISE = "row-wise: each new row of the table under from: is read once"
_CLASSES: Mapping[Write, str] = {
    "append": _ROW_WISE,
    "upsert": _ROW_WISE,
    "aggregate": "by key: the keys of new rows are recomputed from all of their rows",
    "replace": "full: everything is recomputed each time",
}


class DeriveConfig(dg.Config):
    """Run config of a derived table."""

    rebuild: bool = Field(
        default=False,
        description="Compute all rows again and replace them in one commit, also after a change of the query.",
    )


def derived_asset(spec: DerivedTable, shown: Presentation) -> dg.AssetSpec:
    """Return the asset of a derived table."""
    return shown.asset(
        default_key(spec.identifier),
        f"{shown.description or 'Made of ' + ', '.join(spec.sources) + '.'}\n\n"
        f"Written with `{spec.write}`, {_CLASSES[spec.write]}.",
        {"iceberg", "spark"},
        metadata={
            **shown.metadata,
            **({"query": dg.MetadataValue.md(block(spec.sql.strip(), "sql"))} if spec.sql else {}),
        },
    )


def build_derived_asset(
    spec: DerivedTable,
    shown: Presentation,
    asset: dg.AssetSpec | None = None,
    execute: Callable[[dg.AssetExecutionContext, DerivedTable], Iterator[Any]] | None = None,
) -> dg.AssetsDefinition:
    """Return the asset of a derived table, and its checks.

    Args:
        asset: The asset instead of `derived_asset`.
        execute: Gives the events of a run instead of `run_derived`.
    """
    key, run = key_of(spec.identifier), execute or run_derived
    asset = (asset or derived_asset(spec, shown)).replace_attributes(
        deps=[key_of(identifier) for identifier in (*spec.upstream.values(), *spec.joined.values())]
    )
    asset = asset.merge_attributes(metadata={SPEC: spec, **table_address(spec.identifier)}, tags={DERIVED_TAG: ""})
    checks = [
        dg.AssetCheckSpec(
            AUDIT,
            asset=key,
            blocking=True,
            description="The staged rows are the query's result, and a sample equals the result over all upstream "
            "rows.",
        ),
        *(rule_check_spec(rule, key) for rule in spec.named_rules),
    ]

    @dg.multi_asset(
        name=op_name(spec),
        specs=[asset],
        check_specs=checks,
        pool=pool_name(spec),
        required_resource_keys={"catalog", "spark"},
        config_schema=run_choices(DeriveConfig),
    )
    def derive_table(context: dg.AssetExecutionContext) -> Iterator[Any]:
        with as_failures(), heartbeat(context.instance, context.run_id):
            yield from run(context, spec)

    return derive_table


def run_derived(context: dg.AssetExecutionContext, spec: DerivedTable) -> Iterator[Any]:
    """Do what a run of a derived table is for, and give Dagster's events."""
    from kafka_lake.derived.engine import Engine
    from kafka_lake.derived.run import derive
    from kafka_lake.orchestration.check_results import check_result, with_all_rules
    from kafka_lake.runtime.commit import CheckFailedError
    from kafka_lake.runtime.context import Observer

    config, key = DeriveConfig(**context.op_execution_context.op_config), key_of(spec.identifier)
    resources: Any = context.resources
    catalog = resources.catalog.open()
    engine = Engine(
        catalog=catalog,
        spark=resources.spark.live_session,
        run_id=context.run_id,
        observer=Observer(step_done=context.log.debug, warn=context.log.warning),
    )
    try:
        report = derive(spec, engine, config.rebuild)
    except CheckFailedError as error:
        yield dg.AssetCheckResult(asset_key=key, check_name=AUDIT, passed=True, metadata={"verified": 0})
        yield from (check_result(finding, key) for finding in with_all_rules(error.findings, spec.named_rules))
        raise
    except AuditFailedError as error:
        why = plain(error.message)
        yield dg.AssetCheckResult(
            asset_key=key, check_name=AUDIT, passed=False, description=why, metadata={"verified": 0}
        )
        raise
    context.log.info(_sentence(report))
    checks = [
        dg.AssetCheckResult(asset_key=key, check_name=AUDIT, metadata={"verified": report.verified}, passed=True),
        *(check_result(finding, key) for finding in with_all_rules(report.findings, spec.named_rules)),
    ]
    metadata = _metadata(spec, report, catalog)
    yield dg.MaterializeResult(key, metadata=metadata, check_results=checks)


def _sentence(report: "DeriveReport") -> str:
    if report.snapshot is None:
        return f"Table {report.table} is up to date."
    why = f", recomputed everything: {report.full}" if report.full else ""
    return f"Snapshot {report.snapshot}: {report.rows} rows{why}; {report.seconds:.1f} s."


def _metadata(spec: DerivedTable, report: "DeriveReport", catalog: "LakeCatalog") -> dict[str, Any]:
    from kafka_lake.orchestration.table_metadata import about_table

    table = catalog.table(spec.identifier)
    metadata: dict[str, Any] = {
        **table_name(spec.identifier),
        **(about_table(table, catalog, spec.identifier) if table is not None else {}),
        "class": _CLASSES[spec.write],
        "rows_added": report.rows,
        "seconds": round(report.seconds, 1),
    }
    facts = {
        "snapshot_id": report.snapshot and str(report.snapshot),
        "commit": report.kind,
        "everything_computed": report.full,
        "keys_computed": report.keys,
        "verified": report.verified or None,
        "offsets_derived_again": report.rederived or None,
    }
    metadata |= {name: value for name, value in facts.items() if value not in (None, "")}
    for name, upstream in report.upstream.items():
        metadata |= {
            f"upstream_{name}_new_rows": upstream.new,
            f"upstream_{name}_rows": upstream.rows,
            f"upstream_{name}_snapshot": str(upstream.snapshot),
        }
    return metadata


def derived_in(metadata: Iterable[Mapping[str, Any]]) -> list[DerivedTable]:
    """Return the derived tables that the metadata of assets carry, ordered by name."""
    found = [spec for entries in metadata if isinstance(spec := entries.get(SPEC), DerivedTable)]
    return sorted(found, key=lambda table: table.identifier)


def derived_of(repository: dg.RepositoryDefinition | None) -> list[DerivedTable]:
    """Return all derived tables of a code location, ordered by name."""
    return derived_in(metadata_of(repository))
