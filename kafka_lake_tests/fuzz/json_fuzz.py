"""The fuzz of JSON in one process: batches of inputs through the decoder, each with_errors by the oracle."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from kafka_lake_tests.fuzz.adapter import outcomes
from kafka_lake_tests.fuzz.generate import CORPUS, payload, tame_payload
from kafka_lake_tests.fuzz.oracle import Column, Letter, judge

BATCH = 500
_SHOWN = 20


def column(name: str, kind: object, *sources: str) -> Column:
    return Column(name, kind, sources or (name,))


_STRUCT = ("struct", (column("a", "long"), column("b", "string"), column("c", ("struct", (column("d", "double"),)))))
DECLARED = (
    column("bo", "boolean"),
    column("i", "int"),
    column("l", "long"),
    column("f", "float"),
    column("d", "double"),
    column("de", ("decimal", 9, 2)),
    column("d0", ("decimal", 38, 0)),
    column("t", "string"),
    column("bi", "binary"),
    column("da", "date"),
    column("ts", "timestamp"),
    column("tn", "timestamp_ntz"),
    column("li", ("list", "long")),
    column("lt", ("list", "string")),
    column("m", ("map", "double")),
    column("st", _STRUCT),
    column("ls", ("list", _STRUCT)),
)
"""A column of every type, which most inputs have a value for."""
VERSIONED = (
    column("l", "long"),
    column("l__v2", "string", "l"),
    column("st", _STRUCT),
    column("st__v2", ("struct", (column("a", "string"), column("b", "string"))), "st"),
    column("st__v3", "string", "st"),
    column("d", "double"),
    column("i_d", "string", "id"),
    column("ID", "string"),
    column("li", ("list", "double")),
    column("li__v2", "string", "li"),
)
"""Columns beside others that take what the first can't, and names that differ in case."""
_NOT_ARROWS = {"m", "de", "d0"}
PLAIN = tuple(item for item in DECLARED if item.name not in _NOT_ARROWS)
"""Those of the columns that Arrow's parser can take."""
TOPICS: dict[str, tuple[Sequence[Column], bool]] = {
    "declared": (DECLARED, False),
    "declared, plain": (PLAIN, False),
    "inferred": (DECLARED[:12] + DECLARED[15:], True),
    "inferred, plain": (PLAIN, True),
    "versioned": (VERSIONED, True),
    "nothing known": ((), True),
}
"""By name: columns, and whether fields without a column are to be found."""


@dataclass
class Found:
    """What a fuzz has seen so far."""

    inputs: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        answered = ", ".join(f"{name} {count:,}" for name, count in self.outcomes.most_common())
        return f"{self.inputs:,} inputs, each in {2 * len(TOPICS)} ways: {answered}; {len(self.wrong)} wrong"


def fuzz(inputs: int, seed: int) -> Iterator[Found]:
    """Decode inputs batch by batch, every one in all ways, and give what was found so far after each batch."""
    found = Found()
    for start in range(0, inputs, BATCH):
        # Wild and tame batches in turns: what is broken in a batch decides who parses the rest of it.
        make = tame_payload if start // BATCH % 2 else payload
        contents = [make(seed, index) for index in range(start, min(start + BATCH, inputs))]
        check(contents if start else [*CORPUS.values(), *contents], found)
        yield found


def check(contents: Sequence[bytes], found: Found) -> None:
    """Decode a batch in all ways and note what is wrong."""
    found.inputs += len(contents)
    for name, (columns, infer) in TOPICS.items():
        for fast in (True, False):
            where = f"{name}, {'fast' if fast else 'one by one'}"
            try:
                made = list(outcomes(contents, columns, infer, fast))
            except Exception as error:
                found.wrong.append(f"{where}: the whole batch failed: {type(error).__name__}: {error}")
                continue
            for content, outcome, reported in made:
                found.outcomes[outcome.error_class if isinstance(outcome, Letter) else "rows"] += 1
                if len(found.wrong) < _SHOWN:
                    found.wrong += [f"{where}: {problem}" for problem in judge(content, columns, outcome, reported)]
