"""Small changes to what decides, one at a time: do the tests notice?

``python -m kafka_lake_tests.mutants`` runs mutmut as pyproject.toml configures it, prints the score of each module and
the mutants that survived, and exits 1 if fewer than nine in ten of those that a unit test reaches were noticed. What no
unit test reaches are expressions of Spark: the integration tests are for those.
"""

import os
import subprocess
import sys
from collections import Counter, defaultdict

from rich.console import Console
from rich.table import Table

_LEAST = 0.9


def main() -> None:
    environment = {**os.environ, "KAFKA_LAKE_MUTANTS": "1"}
    subprocess.run(["mutmut", "run", *sys.argv[1:]], env=environment, check=True)
    listed = subprocess.run(["mutmut", "results", "--all", "true"], capture_output=True, text=True, check=True).stdout
    outcomes: dict[str, Counter[str]] = defaultdict(Counter)
    survivors: Counter[str] = Counter()
    for line in listed.splitlines():
        name, _, outcome = line.strip().rpartition(": ")
        function = name.rpartition("__mutmut_")[0]
        module = function.rpartition(".")[0]
        outcomes[module][outcome] += 1
        if outcome == "survived":
            survivors[function] += 1
    console = Console(width=110)
    table = Table("module", "mutants", "noticed", "survived", "without a unit test", "score")
    for module, found in sorted(outcomes.items()):
        table.add_row(module, *_figures(found))
    whole = sum(outcomes.values(), Counter())
    table.add_section()
    table.add_row("all", *_figures(whole))
    console.print(table)
    for function, count in survivors.most_common():
        console.print(f"{count:4} {function.removeprefix('kafka_lake.')}", highlight=False, soft_wrap=True)
    print(f"{whole.total():,} mutants, {whole['survived']:,} survived, {_score(whole):.0%} noticed")
    if _score(whole) < _LEAST:
        sys.exit(1)


def _figures(found: "Counter[str]") -> list[str]:
    unreached = found["no tests"]
    noticed = found.total() - unreached - found["survived"]
    return [*map(str, (found.total(), noticed, found["survived"], unreached)), f"{_score(found):.0%}"]


def _score(found: "Counter[str]") -> float:
    reached = found.total() - found["no tests"]
    return 1 - found["survived"] / reached if reached else 1.0


if __name__ == "__main__":
    main()
