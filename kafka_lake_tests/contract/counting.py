"""A proxy before a REST catalog that keeps a list of the requests."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import requests

from kafka_lake.common.server_process import HOST

_TABLE = re.compile(r"/namespaces/(?P<namespace>[^/]+)/tables/(?P<table>[^/?]+)$")
_HOP_BY_HOP = {"connection", "transfer-encoding", "content-length", "content-encoding", "host", "keep-alive"}


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

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _forward(self) -> None:
            found.seen.append((self.command, self.path.partition("?")[0]))
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if found.careless and self.command == "POST" and _TABLE.search(self.path):
                body = json.dumps({**json.loads(body), "requirements": []}).encode()
            headers = {k: v for k, v in self.headers.items() if k.lower() not in _HOP_BY_HOP}
            answer = requests.request(self.command, uri + self.path, data=body, headers=headers, timeout=60)
            self.send_response(answer.status_code)
            for name, value in answer.headers.items():
                if name.lower() not in _HOP_BY_HOP:
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(answer.content)))
            self.end_headers()
            self.wfile.write(b"" if self.command == "HEAD" else answer.content)

        do_GET = do_POST = do_HEAD = do_DELETE = do_PUT = _forward

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing on standard error."""

    server = ThreadingHTTPServer((HOST, 0), Handler)
    found = Requests(f"http://{HOST}:{server.server_address[1]}")
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
