"""Whether a derived table's settings go together, and with the text of its query: checked when definitions load. Pure.

The text shows which tables are read, whether it is one query, and its columns. The audit shows on data whether rows
of a key, or of a record, depend on other rows: see `verify`.
"""

from collections.abc import Iterator
from datetime import UTC, datetime

from sqlglot import exp

from kafka_lake.common.errors import ConfigurationError
from kafka_lake.common.sql_text import unsafe_condition, unsafe_query
from kafka_lake.derive.derived_table import DerivedTable
from kafka_lake.derive.query import ORIGIN, parsed, parsed_key, result_columns, tables_read, unstable_in
from kafka_lake.lake.maintenance.order_settings import order_problem


def query_problems(spec: DerivedTable) -> Iterator[str]:
    """Yield what is wrong with a table's settings, a sentence each, with the setting and what to do."""
    yield from _settings_problems(spec)
    try:
        yield from _key_problems(spec)
        if spec.sql is not None:
            yield from _text_problems(spec, spec.sql)
    except ConfigurationError as error:
        yield str(error)


def _settings_problems(spec: DerivedTable) -> Iterator[str]:
    if (spec.sql is None) == (spec.transform is None):
        yield "sql: or transform: is needed, and one of them only."
    names = [each.rpartition(".")[2].lower() for each in (*spec.sources, *spec.join)]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        yield f"from: and join: have {twice[0]} twice, and the query would know both by that name. Leave one out."
    if spec.identifier in (*spec.upstream.values(), *spec.joined.values()):
        yield f"table: {spec.name} is made from itself. Give it another name, or take it out of from: and join:."
    if spec.write in ("upsert", "aggregate") and not spec.key:
        yield f"write: {spec.write} needs key:, which tells rows apart."
    if spec.write in ("append", "replace") and spec.key:
        yield f"key: has no effect with write: {spec.write}. Leave it out."
    if spec.order_by and spec.write != "upsert":
        yield f"order_by: has no effect with write: {spec.write}. Leave it out."
    if spec.write == "replace" and spec.on_change == "forward":
        yield "on_change: forward has no effect with write: replace, which computes everything each time."
    yield from _partitions_problems(spec)
    for setting in ("keep_rows", "orphan_files", "statistics"):
        if getattr(spec.maintenance, setting):
            yield f"maintenance: {setting}: isn't for derived tables yet. Leave it out."
    if problem := order_problem(spec.maintenance):
        yield problem


def _partitions_problems(spec: DerivedTable) -> Iterator[str]:
    try:
        cut = spec.time_partitions
    except ConfigurationError as error:
        yield str(error)
        return
    if cut and cut.since > (today := datetime.now(UTC).date().isoformat()):
        yield (
            f"partitions: the first one begins on {cut.since}, and today is {today} in UTC: no run has a partition "
            "until then. Write the day of the first rows."
        )


def _key_problems(spec: DerivedTable) -> Iterator[str]:
    for name, text in spec.key.items():
        if spec.write == "upsert" and text != name:
            yield f"key: {name} has an expression. With write: upsert the key is of columns of the result; list them."
        tree = parsed_key(name, text)
        if unsafe := unsafe_condition(text):
            yield f"key: {name}: {text}: {unsafe}."
        elif tree.find(exp.Query, exp.AggFunc, exp.Window) or unstable_in(text):
            yield f"key: {name}: {text}: isn't an expression over the columns of one row."


def _text_problems(spec: DerivedTable, sql: str) -> Iterator[str]:
    query = parsed(sql)
    if unsafe := unsafe_query(sql):
        yield f"sql: {unsafe}."
        return
    yield from _names_problems(spec, query)
    columns = result_columns(query)
    if columns is not None and (
        missing := [each for each in (*spec.key, *spec.order_by) if each.lower() not in columns]
    ):
        setting = "key" if missing[0] in spec.key else "order_by"
        yield f"{setting}: {missing[0]} is no column of the result. Select it under that name."
    if spec.is_row_wise and any(
        each.alias.lower() == ORIGIN for each in query.find_all(exp.Alias) if not _is_origin(each)
    ):
        yield f"sql: {ORIGIN} tells the record of a row, and another value gets its name. Choose another name."
    if spec.is_incremental and spec.verify and (found := unstable_in(sql)):
        yield (
            f"sql: {found} gives other values in each run: rows that are there keep the old ones, and verify: can't "
            "compare them. Use columns of the rows, write: replace, or verify: 0 if that is meant."
        )


def _is_origin(alias: exp.Alias) -> bool:
    return isinstance(alias.this, exp.Column) and alias.this.name.lower() == ORIGIN


def _names_problems(spec: DerivedTable, query: exp.Query) -> Iterator[str]:
    read = tables_read(query)
    known = {name.lower(): name for name in (*spec.upstream, *spec.joined)}
    for name in sorted(read):
        if name.lower() not in known:
            bare = name.rpartition(".")[2].lower()
            if bare in known:
                yield f"sql: reads {name}; write {known[bare]}, as the query knows the tables of from: and join:."
            else:
                yield f"sql: reads {name}, which is neither in from: nor in join:. Add it to one of them."
    for name in sorted(set(known) - {each.lower() for each in read}):
        yield f"sql: doesn't read {known[name]}. Take it out of from: and join:."
