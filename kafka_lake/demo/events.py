"""What happens in the web shop, all in one topic, and what its kitchens measure, a topic for each; with their dirt."""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

TOPIC = "shop-events"
KITCHENS = tuple(f"kitchen-{name}" for name in ("harbour", "market", "station"))
PARTITIONS = 3

_KINDS = ("order", "view", "click", "coupon", "complaint")
_WEIGHTS = (30, 40, 20, 7, 3)
_LATE = 0.05
_NO_JSON = 0.01
_NO_AMOUNT = 0.02


@dataclass(frozen=True)
class Sent:
    """A record of the web shop's.

    Args:
        key: Of the record.
        value: Of the record.
    """

    key: str
    value: bytes


def generate_events(count: int, seed: int, first_id: int, end: datetime) -> Iterator[Sent]:
    """Yield records of the day that ends at ``end``, numbered from ``first_id``; some late, some that can't be read.

    The same arguments give the same records.
    """
    rng = random.Random(f"{seed}/{first_id}")
    step = timedelta(days=1) / max(count, 1)
    for number in range(count):
        late = timedelta(hours=rng.randrange(1, 12)) if rng.random() < _LATE else timedelta(0)
        at = end - step * (count - 1 - number) - late
        event = _event(rng, first_id + number, f"{at:%Y-%m-%dT%H:%M:%S}Z")
        value = json.dumps(event, separators=(",", ":")).encode()
        yield Sent(str(event["event_id"]), value[:-5] if rng.random() < _NO_JSON else value)


def _event(rng: random.Random, number: int, at: str) -> dict[str, Any]:
    kind = rng.choices(_KINDS, _WEIGHTS)[0]
    event: dict[str, Any] = {"event_id": number, "type": kind, "at": at}
    if kind == "order":
        total: Any = round(rng.uniform(8, 90), 2)
        return event | {"store_id": rng.randrange(1, 21), "total": "free" if rng.random() < _NO_AMOUNT else total}
    if kind in ("view", "click"):
        return event | {"page": rng.choice(("/menu", "/offers", "/cart")), "user": f"user-{rng.randrange(500)}"}
    return event | {"text": rng.choice(("PIZZA10", "too late", "no olives", "lovely"))}


def generate_measurements(count: int, kitchen: str, first_id: int) -> Iterator[Sent]:
    """Yield what a kitchen measures: its ovens have sensors of different makes."""
    rng = random.Random(f"{kitchen}/{first_id}")
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    for number in range(first_id, first_id + count):
        told: dict[str, Any] = {"id": number, "at": (begin + timedelta(minutes=number)).isoformat()}
        told["oven"] = rng.randrange(4)
        told |= {"celsius": rng.randrange(200, 330)} if rng.random() < 0.7 else {"celsius": 300.5, "door": "open"}
        yield Sent(f"{told['oven']}", json.dumps(told).encode())
