"""What a user's module has: functions that check the rows of a commit."""

from collections.abc import Iterator

from pyspark.sql import DataFrame

from kafka_lake import CheckResult

text = "orders"


def amounts(rows: DataFrame) -> CheckResult:
    negative = rows.filter("amount < 0")
    first = [str(row["amount"]) for row in negative.limit(1).collect()]
    return CheckResult("amount is not negative", not first, negative.count(), ", ".join(first))


def reported(rows: DataFrame) -> CheckResult:
    return CheckResult("v is there", rows.filter("v IS NULL").isEmpty())


def few(rows: DataFrame) -> CheckResult:
    return CheckResult("Id is at most 1", rows.filter("Id > 1").isEmpty())


def both(rows: DataFrame) -> Iterator[CheckResult]:
    yield amounts(rows)
    yield CheckResult("id is there", rows.filter("id IS NULL").isEmpty())


def raises(rows: DataFrame) -> CheckResult:
    raise ValueError(f"amount {rows.first()['amount']}")  # type: ignore[index]


def nothing(rows: DataFrame) -> None:
    """Return what no check returns."""


def none_of_them(rows: DataFrame) -> list[CheckResult]:
    return []
