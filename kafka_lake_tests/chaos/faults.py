"""The faults: each prepares records, lets runs loose, strikes, and leaves everything running again."""

import random
import shutil
import signal
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import psutil

from kafka_lake.catalog.positions import ancestors, head_of
from kafka_lake.common.processes import Server
from kafka_lake_tests.chaos.proxies import FAIL, LOSE, SLOW, Fault
from kafka_lake_tests.chaos.runner import FAILED
from kafka_lake_tests.chaos.traffic import MOST_PARTITIONS, Topic, consumed
from kafka_lake_tests.chaos.verify import Place, places
from kafka_lake_tests.chaos.world import RUN_SECONDS, Run, World, wait_for

LABELS = (
    "planned",
    "table created",
    "table staged",
    "dead letters staged",
    "audited",
    "dead letters published",
    "table published",
)
_BEFORE_PUBLICATION = ("planned", "table staged", "dead letters staged", "audited", "dead letters published")
_STARTUP = 90.0
# More of them, and they would win every race against the run.
_MAINTENANCE_PASSES = 2


@dataclass
class Tally:
    """What was done and what came of it.

    Args:
        injected: Faults by name.
        killed_at: SIGKILLs by step.
        recoveries: Seconds from the start of the run after a SIGKILL to its first commit.
        outcomes: Runs by how they ended.
    """

    injected: dict[str, int] = field(default_factory=dict)
    killed_at: dict[str, int] = field(default_factory=dict)
    recoveries: list[float] = field(default_factory=list)
    outcomes: dict[str, int] = field(default_factory=dict)


class Chaos:
    """Strikes a world with one fault at a time.

    Args:
        world: What to strike.
        topics: Whose runs are struck.
        chance: Makes every choice.
        tally: Is written to.

    Attributes:
        problems: What a fault itself has found to be wrong, one line each.
        run_seconds: How long a run may take.
    """

    run_seconds = RUN_SECONDS

    def __init__(self, world: World, topics: list[Topic], chance: random.Random, tally: Tally) -> None:
        self.world = world
        self.topics = topics
        self.chance = chance
        self.tally = tally
        self.problems: list[str] = []
        self._after_kill = False

    def faults(self) -> dict[str, Callable[[], None]]:
        """Return every fault by its name."""
        named: dict[str, Callable[[], None]] = {}
        for label in LABELS:
            named[f"kill at {label}"] = lambda label=label: self.kill_at(label)  # type: ignore[misc]
        for step in _BEFORE_PUBLICATION:
            named[f"zombie at {step}"] = lambda step=step: self.zombie(step)  # type: ignore[misc]
        named |= {
            "kill while writing": self.kill_while_writing,
            "kill broker": self.kill_broker,
            "race": self.race,
            "answer lost": self.answer_lost,
            "answer lost as 504": lambda: self.answer_lost(504),
            "answer lost as 503": lambda: self.answer_lost(503),
            "publication's answer lost": lambda: self.answer_lost(0, "publish"),
            "catalog fails": self.catalog_fails,
            "catalog slow": self.catalog_slow,
            "maintenance": self.maintenance,
            "rollback": self.roll_back,
            "kill engine": self.kill_engine,
            "kill engine's Python": self.kill_python,
            "kill catalog": self.kill_catalog,
            "host replaced": self.replace_host,
            "log regrown": self.regrow,
            "catalog fails in reporting": self.reporting_fails,
            "network cut": lambda: self.network("cut"),
            "network stalled": lambda: self.network("stall"),
            "partitions and fields added": self.grow,
        }
        return named

    def any_topic(self) -> Topic:
        topic = self.chance.choice(self.topics)
        self.world.traffic.burst(topic)
        return topic

    def start(self, topic: Topic, home: str = "home", **options: object) -> Run:
        return self.world.run(topic, home, **options)

    def finish(self, run: Run, times: int = 1) -> int:
        """Wait for a run's end, note what came of it, and how long the first commit after a SIGKILL took.

        ``times`` is how many times `run_seconds` it may take.
        """
        killed, self._after_kill = self._after_kill, False
        code = run.finish(times * self.run_seconds)
        commits = run.events("commit")
        if killed and commits and "stopped" not in {e["event"] for e in run.events()}:
            self.tally.recoveries.append(commits[0]["at"] - run.began)
        if code == -signal.SIGKILL:
            self._after_kill = True
        names = {0: "completed", -signal.SIGKILL: "killed"}
        outcome = names.get(code, "failed")
        self.tally.outcomes[outcome] = self.tally.outcomes.get(outcome, 0) + 1
        for event in run.events("killed"):
            self.tally.killed_at[event["step"]] = self.tally.killed_at.get(event["step"], 0) + 1
        return code

    def any_table(self, topic: Topic) -> tuple[str, str]:
        return self.chance.choice(topic.spec.tables).identifier

    def until_halted(self, run: Run, step: str) -> None:
        """Wait until a run has halted at a step, or has ended: not every table has every step."""
        seconds = _STARTUP + self.run_seconds
        wait_for(lambda: run.halted() or not run.alive(), seconds, f"run {run.run_id} to halt at {step}")

    def until_writing(self, run: Run) -> bool:
        """Wait until a run has planned, and a random moment more; return whether it is still there."""
        wait_for(lambda: run.passed("planned") or not run.alive(), _STARTUP, f"run {run.run_id} to plan")
        threading.Event().wait(self.chance.uniform(0, 1.5))
        return run.alive()

    def kill_at(self, label: str) -> None:
        """SIGKILL a run at a named step."""
        if label == "table created":
            name = f"fresh-{len(self.world.traffic.topics)}"
            topic = self.world.traffic.new_topic(name, declared=self.chance.random() < 0.5, partitions=2)
            self.world.traffic.burst(topic)
            run = self.start(topic, kill_at=label)
        else:
            topic = self.any_topic()
            nth = self.chance.choice([1, 1, 2])
            # Small commits, so that there is a second passage.
            run = self.start(topic, kill_at=label, nth=nth, **({"max_records": 40} if nth > 1 else {}))
        self.finish(run)

    def kill_while_writing(self) -> None:
        """SIGKILL a run at a random moment between its plan and its end."""
        run = self.start(self.any_topic())
        if self.until_writing(run):
            run.send(signal.SIGKILL)
        self.finish(run)

    def kill_broker(self) -> None:
        """SIGKILL the broker that leads a partition while a run reads and producers produce; start it again."""
        topic = self.any_topic()
        run = self.start(topic)
        self.until_writing(run)
        node = max(1, self.world.brokers.leader_of(topic.name, self.chance.randrange(topic.partitions)))
        self.world.brokers.kill(node)
        if self.world.brokers.count > 1:
            # The others go on without it for a while.
            threading.Event().wait(self.chance.uniform(1, 4))
        self.world.brokers.revive(node)
        self.finish(run)

    def zombie(self, step: str) -> None:
        """Stop a run at a named step, let another overtake it, and wake it again."""
        topic = self.any_topic()
        first = self.start(topic, stop_at=step)
        self.until_halted(first, step)
        if self.chance.random() < 0.5:
            self.world.traffic.burst(topic)
        second = self.start(topic, "second-home")
        self.finish(second)
        self.world.resume(first)
        self.finish(first)

    def race(self) -> None:
        """Let two deployments run at once, and set both off from the same step."""
        step = self.chance.choice(["planned", "audited"])
        topic = self.any_topic()
        runs = [self.start(topic, home, stop_at=step) for home in ("home", "second-home")]
        for run in runs:
            self.until_halted(run, step)
        for run in runs:
            self.world.resume(run)
        for run in runs:
            self.finish(run)

    def answer_lost(self, status: int = 0, kind: str = "commit") -> None:
        """Let a commit happen and lose the catalog's answer."""
        # Of two publications the first is the dead letters'.
        self._with_catalog(Fault(LOSE, kind, 1, status), self.chance.randrange(2 if kind == "publish" else 4))

    def catalog_fails(self) -> None:
        """Let the catalog refuse some requests without carrying them out."""
        kind = self.chance.choice(["commit", "stage", "publish", "request"])
        status = self.chance.choice([0, 500, 503, 504])
        self._with_catalog(Fault(FAIL, kind, self.chance.randint(1, 3), status), self.chance.randrange(4))

    def catalog_slow(self) -> None:
        """Let the catalog take its time."""
        self._with_catalog(Fault(SLOW, "commit", 4, delay=self.chance.uniform(0.5, 2)), 0)

    def _with_catalog(self, fault: Fault, skip: int) -> None:
        topic = self.any_topic()
        if skip:
            self.world.proxy.arm(Fault(SLOW, fault.kind, skip))
        self.world.proxy.arm(fault)
        try:
            self.finish(self.start(topic))
        finally:
            self.world.proxy.disarm()

    def maintenance(self) -> None:
        """Compact and expire as a stranger would, while a run is on."""
        topic = self.any_topic()
        run = self.start(topic)
        spark = self.world.session()
        call = partial(self.world.catalog().call, identifier=self.any_table(topic))
        try:
            for _ in range(_MAINTENANCE_PASSES):
                if not self.until_writing(run):
                    break
                try:
                    # In this order the snapshot that carries the position may go.
                    spark.sql(call("rewrite_data_files", options="map('rewrite-all', 'true')")).collect()
                    spark.sql(call("expire_snapshots", retain_last="1", older_than="current_timestamp()")).collect()
                except Exception as error:
                    # A stranger's maintenance may lose its own race.
                    self.world.tell_user(f"  maintenance lost: {str(error).splitlines()[0][:120]}")
        finally:
            spark.stop()
        self.finish(run)

    def roll_back(self) -> None:
        """Set a table back by one commit, as a stranger would, while a run is between its plan and its publication."""
        topic = self.any_topic()
        # There must be something to go back to.
        self.finish(self.start(topic))
        self.world.traffic.burst(topic)
        step = self.chance.choice(_BEFORE_PUBLICATION)
        run = self.start(topic, stop_at=step)
        self.until_halted(run, step)
        table = self.world.catalog().table(self.any_table(topic))
        assert table is not None
        # Not to where main never was: the middle of a replacement.
        was = {entry.snapshot_id for entry in table.history()}
        history = [s.snapshot_id for s in ancestors(table, head_of(table)) if s.snapshot_id in was]
        if len(history) > 1:
            table.manage_snapshots().rollback_to_snapshot(history[1]).commit()
            self.world.rolled_away.setdefault(topic.name, set()).add(history[0])
        self.world.resume(run)
        self.finish(run)

    def kill_engine(self) -> None:
        """SIGKILL the Spark Connect server while a run is on, and start it again."""
        self.while_writing(lambda: self.restart(self.world.connect))

    def kill_catalog(self) -> None:
        """SIGKILL the catalog's server while a run is on, and start it again."""
        self.while_writing(lambda: self.restart(self.world.server))

    def kill_python(self) -> None:
        """SIGKILL all Python processes of the Spark Connect server while a run is on."""
        self.while_writing(self._end_python)

    def while_writing(self, strike: Callable[[], None]) -> None:
        """Strike what a run works with, at a random moment between its plan and its end."""
        run = self.start(self.any_topic())
        self.until_writing(run)
        strike()
        self.finish(run)

    @staticmethod
    def restart(server: Server) -> None:
        server.kill()
        server.start()

    def _end_python(self) -> None:
        assert self.world.connect.pid is not None
        for process in psutil.Process(self.world.connect.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                process.kill()

    def replace_host(self) -> None:
        """SIGKILL a run and take its host's folder away; the next run has nothing but the systems."""
        topic = self.any_topic()
        home = f"host-{len(self.world.runs)}"
        run = self.start(topic, home)
        self.until_writing(run)
        run.send(signal.SIGKILL)
        self.finish(run)
        shutil.rmtree(self.world.folder / home, ignore_errors=True)
        self.finish(self.start(topic, f"{home}-instead"))

    def regrow(self) -> None:
        """Let the brokers lose the end of a log that a table has, and let it grow beyond the table's position."""
        name = f"regrown-{len(self.world.runs)}"
        topic = self.world.traffic.new_topic(name, declared=self.chance.random() < 0.5, partitions=1)
        self.world.traffic.burst(topic)
        self.world.brokers.remember(name)
        cut = len(topic.ledger)
        self.world.traffic.burst(topic)
        if code := self.finish(self.start(topic)):
            self.problems.append(f"topic {name}: its first run failed with {code}")
            del self.world.traffic.topics[name]
            return
        before = places(self.world.catalog(), topic)
        self.world.brokers.lose(name)
        # What was lost is in the table, and nowhere else: the others' verdict can't be had of it.
        self.world.traffic.forget(topic)
        self.world.traffic.burst(topic, 60)
        if self.world.cluster().watermarks_of(name).end[0] <= 2 * cut:
            self.problems.append(f"topic {name}: its log has not grown beyond what was lost")
        run = self.start(topic)
        code, found = self.finish(run), places(self.world.catalog(), topic)
        truth = consumed(self.world.brokers.bootstrap_servers, topic)
        later: Counter[Place] = Counter(p for p, (_, value) in truth.items() if value is not None and p[1] >= cut)
        goes_on = topic.spec.on_data_loss == "continue"
        expected = before + later if goes_on else before
        reported = [event["error"] for event in run.events("failed")]
        if (code, reported) != ((0, []) if goes_on else (FAILED, ["DataLossError"])):
            self.problems.append(f"topic {name}: its log was cut off, and the run ended with {code}, {reported}")
        if found != expected:
            self.problems.append(
                f"topic {name}: its log was cut off; too many {found - expected}, missing {expected - found}"
            )

    def reporting_fails(self) -> None:
        """Let the catalog refuse requests once a run's rows are visible: the run must not fail by that."""
        run = self.start(self.any_topic(), stop_at="table published")
        self.until_halted(run, "table published")
        self.world.proxy.arm(Fault(FAIL, "request", self.chance.randint(1, 3), self.chance.choice([0, 500, 503])))
        try:
            self.world.resume(run)
            if code := self.finish(run):
                said = [event["message"] for event in run.events("failed")]
                self.problems.append(f"run {run.run_id} has published, and ended with {code}: {said}")
        finally:
            self.world.proxy.disarm()

    def network(self, how: str) -> None:
        """Cut or stall all connections to the brokers for some seconds while a run is on."""
        network = self.world.brokers.network

        def strike() -> None:
            (network.cut if how == "cut" else network.stall)()
            try:
                threading.Event().wait(self.chance.uniform(1, 5))
            finally:
                network.restore()

        self.while_writing(strike)

    def grow(self) -> None:
        """Add partitions to one topic and fields to the records of another while a run is on."""
        for topic in self.topics:
            if not topic.declared:
                topic.fields.append(f"extra_{len(topic.fields)}")
        topic = self.any_topic()
        run = self.start(topic)
        self.until_writing(run)
        if topic.partitions < MOST_PARTITIONS:
            self.world.traffic.add_partition(topic)
            self.world.traffic.burst(topic)
        self.finish(run)
