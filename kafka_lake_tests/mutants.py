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
_SPARK = "statements and frames of Spark: integration/test_replay_and_reset.py and test_reconcile.py hold them"
_SENTENCE = "parts of sentences, and what only a log line says"
_EQUAL = "the same for every input: another branch, or the default, gives it too"
_SPARK_OR_EQUAL = "a scan of Spark (integration/test_exactly_once.py holds it); others are the same for every input"
_SENTENCE_OR_EQUAL = "what an error says to do next; the others are the same for every input"
# Why the tests let them live, for those that were looked at. A function that isn't here is to be looked at.
_REASONS = {
    "ingest.dead_letters.reconcile.x_reconcile": _SPARK,
    "ingest.dead_letters.reconcile.x__change": _SPARK,
    "ingest.dead_letters.reconcile.x__audit": _SPARK,
    "ingest.dead_letters.reconcile.x__places": _SPARK,
    "ingest.dead_letters.reconcile.x__take_out": _SPARK,
    "ingest.dead_letters.reconcile.x_published_keys": _SPARK,
    "ingest.audit.x__staged_partitions": _SPARK,
    # The column of a scan; a falsy value for another one; the text for a snapshot without a position, refused anyway.
    "ingest.audit.x_audit": _SPARK_OR_EQUAL,
    # A history without a snapshot; a falsy value for another one; a number that only the marked snapshot itself has.
    "ingest.dead_letters.pending.x_unreconciled": _EQUAL,
    # The remedy of a loss; the beginning of a partition that neither position nor watermarks know.
    "ingest.plan.append.x_backlog": _SENTENCE_OR_EQUAL,
    "ingest.audit.x_partitions_of": _EQUAL,
    "ingest.audit.x_schema_evolution": _SENTENCE,
    "ingest.plan.identity.x_untold": _SENTENCE,
    "ingest.plan.identity.x_unsure": _SENTENCE,
    "ingest.plan.identity.x_another_topic": _SENTENCE,
    "ingest.plan.changes.x_replacement": _EQUAL,
    "lake.positions.x__counted": _EQUAL,
    "lake.branches.xǁStagingBranchǁ_publish": _SENTENCE,
    "lake.branches.x__again": "how long it waits between two attempts",
    "ingest.publish.x_publish": "when a commit became visible, which is only shown",
    "components.sensors.requests.x_work_of": "the text of a fingerprint, which is only compared with itself",
}


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
        name = function.removeprefix("kafka_lake.")
        console.print(f"{count:4} {name}: {_REASONS.get(name, 'to be looked at')}", highlight=False, soft_wrap=True)
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
