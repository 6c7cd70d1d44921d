"""A proxy before a REST catalog that keeps a list of the requests."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from kafka_lake_tests.contract.relay import Relay, served

_TABLE = re.compile(r"/namespaces/(?P<namespace>[^/]+)/tables/(?P<table>[^/?]+)$")
_FORBIDDEN = json.dumps({"error": {"message": "not yours", "type": "ForbiddenException", "code": 403}}).encode()


@dataclass
class Requests:
    """The requests that came through.

    Args:
        uri: The proxy's address.
        seen: Method and path of each, in order.
    """

    uri: str
    seen: list[tuple[str, str]] = field(default_factory=list)
    careless: bool = False
    """Whether assertions are taken out of commits, as a server does that doesn't look at them."""
    forbidden: frozenset[str] = frozenset()
    """Methods that are refused, as a server does that gives a client few rights."""

    def clear(self) -> None:
        self.seen.clear()

    def kinds(self) -> Counter[str]:
        """Return how many loads and commits of tables there were, and how many others, by method and path."""
        found: Counter[str] = Counter()
        for method, path in self.seen:
            kind = {"GET": "load", "POST": "commit", "HEAD": "load"}.get(method) if _TABLE.search(path) else None
            found[kind or f"{method} {path}"] += 1
        return found


@contextmanager
def counted(uri: str) -> Iterator[Requests]:
    """Run a proxy before a catalog, and yield what came through."""

    class Handler(Relay):
        def handle_request(self) -> None:
            found.seen.append((self.command, self.path.partition("?")[0]))
            body = self.body()
            if self.command in found.forbidden and "/namespaces" in self.path:
                return self.answer(403, {"Content-Type": "application/json"}, _FORBIDDEN)
            if found.careless and self.command == "POST" and _TABLE.search(self.path):
                body = json.dumps({**json.loads(body), "requirements": []}).encode()
            return self.relay(uri, body)

    with served(Handler) as address:
        found = Requests(address)
        yield found
