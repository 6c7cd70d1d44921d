"""What became of a batch in a history, and what the audit found of it: plain data."""

from dataclasses import dataclass


@dataclass(frozen=True)
class HistoryCheck:
    """What was found of a batch's keys in the staged history.

    Args:
        other: Events that are missing, are there twice, or have another row than they should have.
        backwards: Rows whose interval has no beginning, or ends before it begins.
        untiled: Versions that the next one of their key, or a delete, doesn't follow at once.
        several: Keys with several versions that are open.
        unlike: Keys whose newest event isn't what the table has.
    """

    other: int
    backwards: int
    untiled: int
    several: int
    unlike: int

    @property
    def problems(self) -> tuple[str, ...]:
        """Return what is wrong."""
        said = {
            "events are missing, double or otherwise than computed": self.other,
            "rows have an interval that runs backwards": self.backwards,
            "versions overlap the next one, or leave a gap before it": self.untiled,
            "keys have several open versions": self.several,
            "keys have another newest version than the table has": self.unlike,
        }
        return tuple(f"history: {count} {what}" for what, count in said.items() if count)


@dataclass(frozen=True)
class HistoryBatch:
    """What became of a batch's changes in the history.

    Args:
        events: Events that it didn't have.
        versions: By how many versions there are more than before.
        closed: By how many versions more have an end.
        rewritten: Rows that it had, and that are others now.
        check: What the audit found.
    """

    events: int
    versions: int
    closed: int
    rewritten: int
    check: HistoryCheck

    @property
    def facts(self) -> dict[str, int]:
        """Return the figures by the names that a check's page has for them."""
        return {
            "history_events": self.events,
            "history_versions_added": self.versions,
            "history_versions_closed": self.closed,
            "history_rows_rewritten": self.rewritten,
        }


NOTHING_NEW = HistoryBatch(
    events=0,
    versions=0,
    closed=0,
    rewritten=0,
    check=HistoryCheck(other=0, backwards=0, untiled=0, several=0, unlike=0),
)
