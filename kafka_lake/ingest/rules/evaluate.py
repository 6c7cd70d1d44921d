"""Rules asked of rows: first by Arrow those of single rows, then by Spark the others of the rows that stay."""

from dataclasses import replace
from functools import reduce

from kafka_lake.ingest.rule import BY_ARROW, Rule
from kafka_lake.ingest.rules.asked import Asked, Verdict
from kafka_lake.ingest.rules.by_arrow import by_arrow
from kafka_lake.ingest.rules.by_spark import by_spark
from kafka_lake.ingest.rules.check import run_check
from kafka_lake.ingest.rules.refused import Refused
from kafka_lake.ingest.rules.result import RuleResult

_BY_SPARK = ("expression", "unique", "foreign_key", "row_count", "null_share")


def evaluate(asked: Asked) -> Verdict:
    """Ask rules of rows.

    Returns:
        The verdict. It is found once: who asks again may get another one where an expression asks for the time.

    Raises:
        ConfigurationError: If a rule can't be asked of these columns.
    """
    results, refused = dict[Rule, RuleResult](), list[Refused]()
    for engine, kinds in ((by_arrow, BY_ARROW), (by_spark, _BY_SPARK), (_by_checks, ("check",))):
        rules = tuple(rule for rule in asked.rules if rule.kind in kinds)
        if not rules:
            continue
        verdict = engine(replace(asked, rules=rules))
        results |= {each.rule: each for each in verdict.results}
        if verdict.refused is not None and asked.column is not None:
            refused.append(verdict.refused)
            asked = replace(asked, rows=verdict.refused.left(asked.rows, asked.column))
    found = tuple(results[rule] for rule in asked.rules)
    fails = any(each.fails for each in found)
    return Verdict(found, None if fails or not refused else reduce(Refused.and_, refused))


def _by_checks(asked: Asked) -> Verdict:
    """Call your own checks with the rows that the other rules leave; a commit without rows isn't checked."""
    rows = asked.rows if asked.untold is None else asked.rows.drop(asked.untold)
    count = rows.count()
    if not count:
        return Verdict(tuple(RuleResult(rule, 0, 0) for rule in asked.rules))
    found = {rule: run_check(str(rule.entry.check), rows, asked.samples, asked.mask) for rule in asked.rules}
    return Verdict(tuple(RuleResult(rule, count, int(bool(c.failures)), checked=c) for rule, c in found.items()))
