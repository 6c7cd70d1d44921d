"""Proxies before a REST catalog, Glue and S3 that keep a list of the requests."""

import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import requests

from kafka_lake.catalog.lake_catalog import LakeCatalog
from kafka_lake.runtime.context import Connections
from kafka_lake_tests.contract.relay import Relay, served

_TABLE = re.compile(r"/namespaces/(?P<namespace>[^/]+)/tables/(?P<table>[^/?]+)$")
_FORBIDDEN = json.dumps({"error": {"message": "not yours", "type": "ForbiddenException", "code": 403}}).encode()


@dataclass
class Requests:
    """The requests that came through.

    Args:
        uri: The proxy's address.
        seen: Method and path of each, in order; with Glue, the operation instead of the path.
    """

    uri: str
    seen: list[tuple[str, str]] = field(default_factory=list)
    careless: bool = False
    """Whether assertions are taken out of commits, as a server does that doesn't look at them."""
    forbidden: frozenset[str] = frozenset()
    """Methods that are refused, as a server does that gives a client few rights."""
    delay: float = 0
    """Seconds that each request to a store waits."""
    unanswered: int = 0
    """Which commit is made and never answered, counted from 1; 0 for none."""

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
            if self.command == "POST" and _TABLE.search(self.path) and found.kinds()["commit"] == found.unanswered:
                headers = {name: value for name, value in self.headers.items() if name.lower() != "host"}
                requests.post(uri + self.path, data=body, headers=headers, timeout=60).raise_for_status()
                found.unanswered = 0
                self.close_connection = True
                return None
            return self.relay(uri, body)

    with served(Handler) as address:
        found = Requests(address)
        yield found


@contextmanager
def counted_glue(endpoint: str) -> Iterator[Requests]:
    """Run a proxy before Glue, which is asked for everything at one path, and yield the operations."""

    class Handler(Relay):
        def handle_request(self) -> None:
            found.seen.append((self.command, (self.headers.get("X-Amz-Target") or "").removeprefix("AWSGlue.")))
            self.relay(endpoint, self.body())

    with served(Handler) as address:
        found = Requests(address)
        yield found


@contextmanager
def counted_store(endpoint: str) -> Iterator[Requests]:
    """Run a proxy before S3 that passes on what was signed as it is, the name of the host too."""
    where = urlsplit(endpoint)

    class Handler(Relay):
        def handle_request(self) -> None:
            found.seen.append((self.command, self.path))
            time.sleep(found.delay)
            is_chunked = self.headers.get("Transfer-Encoding") == "chunked"
            body = b"".join(self._chunks()) if is_chunked else self.body()
            with closing(HTTPConnection(where.hostname or "", where.port, timeout=60)) as server:
                server.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                for name, value in self.headers.items():
                    if name.lower() not in ("connection", "expect"):
                        server.putheader(name, value)
                server.endheaders([body] if is_chunked else body, encode_chunked=is_chunked)
                answer = server.getresponse()
                body = answer.read()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in ("connection", "transfer-encoding", "content-length"):
                    self.send_header(name, value)
            # Of a HEAD, it is the length of what isn't sent.
            length = answer.getheader("Content-Length") if self.command == "HEAD" else len(body)
            self.send_header("Content-Length", str(length or 0))
            self.end_headers()
            self.wfile.write(body)

        def _chunks(self) -> Iterator[bytes]:
            while size := int(self.rfile.readline().partition(b";")[0], 16):
                yield self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()

    with served(Handler) as address:
        found = Requests(address)
        yield found


def connections_of(properties: Mapping[str, str], kafka: Any, spark: Any) -> Callable[[], Connections]:
    """Return a function that gives what a run of its own process has: nothing is known of the catalog yet.

    Args:
        properties: Of a catalog that Spark's session gets beside its own.
        kafka: The resource of the brokers.
        spark: The resource of the session.
    """
    session = spark.spark_session.newSession()
    for key, value in LakeCatalog("counted", properties).spark_conf().items():
        if key.startswith("spark.sql.catalog."):
            session.conf.set(key, value)

    def fresh() -> Connections:
        return Connections(kafka.cluster(), kafka.spark_options(), LakeCatalog("counted", properties), lambda: session)

    return fresh
