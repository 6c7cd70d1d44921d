"""What every chaos does: strike, round after round, let the tables catch up, and count."""

import time
from collections.abc import Callable, Mapping

from kafka_lake_tests.chaos.faults import Chaos
from kafka_lake_tests.chaos.verify import PositionWatch, Verdict
from kafka_lake_tests.chaos.world import World


class ChaosError(Exception):
    """There is nothing to strike."""


def first_tables(chaos: Chaos) -> None:
    """Let all tables have rows before anything is struck.

    Raises:
        ChaosError: If a run fails.
    """
    for topic in chaos.topics:
        if code := chaos.finish(chaos.world.run(topic)):
            log = chaos.world.runs[-1].log
            raise ChaosError(f"the first run failed with {code} before any fault: {log}")
        topic.has_table = True


def chosen(chaos: Chaos, only: tuple[str, ...]) -> dict[str, Callable[[], None]]:
    """Return the faults whose names begin so, all if nothing is asked for.

    Raises:
        ChaosError: If there are none.
    """
    faults = chaos.faults()
    found = {name: fault for name, fault in faults.items() if name.startswith(only or "")}
    if not found:
        raise ChaosError(f"no fault begins with {' or '.join(only)}; there are: {', '.join(faults)}")
    return found


def strike(
    chaos: Chaos, faults: Mapping[str, Callable[[], None]], watch: PositionWatch, go_on: Callable[[int, int], bool]
) -> list[str]:
    """Strike with one fault after the other, each as often as the others.

    Args:
        chaos: Whose faults they are.
        faults: By name.
        watch: Looks at the tables after each.
        go_on: Told how many rounds there were and how many faults there are; returns whether another shall follow.

    Returns:
        What took too long, one line each.
    """
    deck: list[str] = []
    hung: list[str] = []
    done = 0
    while go_on(done, len(faults)):
        if not deck:
            deck = sorted(faults)
            chaos.chance.shuffle(deck)
        name = deck.pop()
        began = time.monotonic()
        try:
            faults[name]()
        except TimeoutError as error:
            hung.append(f"during {name}: {error}")
            for run in chaos.world.runs:
                run.kill()
        chaos.tally.injected[name] = chaos.tally.injected.get(name, 0) + 1
        watch.look(chaos.world.traffic.topics)
        chaos.world.tell_user(f"{done + 1:4} {name} ({time.monotonic() - began:.1f} s)")
        done += 1
    return hung


def catch_up(chaos: Chaos) -> list[str]:
    """Run once for each table with all faults off, and return what fails, one line each."""
    failures = []
    for topic in chaos.world.traffic.topics.values():
        run = chaos.world.run(topic)
        try:
            # Faults may have left a backlog of many commits.
            code = chaos.finish(run, times=5)
        except TimeoutError as error:
            failures.append(f"topic {topic.name}: {error}")
        else:
            if code:
                said = [event["message"] for event in run.events("failed")]
                failures.append(f"topic {topic.name}: run {run.run_id} failed without any fault ({code}): {said}")
    return failures


def count(world: World, verdict: Verdict, labels: tuple[str, ...]) -> None:
    """Add to a verdict how much there was of what, and which steps of runs aren't among those they are killed at."""
    events = [event for run in world.runs for event in run.events()]
    verdict.figures["runs"] = len(world.runs)
    verdict.figures["commits"] = sum(e["event"] == "commit" for e in events)
    for how, times in world.traffic.transactions.items():
        verdict.figures[f"transactions {how}"] = times
    for what, times in world.traffic.refusals.items():
        verdict.figures[f"transactional producers refused: {what}"] = times
    for what, times in world.proxy.injected.items():
        verdict.figures[f"catalog: {what}"] = times
    for label in sorted({e["step"] for e in events if e["event"] == "step"} - set(labels)):
        verdict.notes.append(f"step {label!r} is not among the steps that runs are killed at")
