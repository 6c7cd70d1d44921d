"""What proxies before a catalog have in common: requests passed on, answers passed back, served in a thread."""

import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import requests

from kafka_lake.common.processes import HOST

_HOP_BY_HOP = {"connection", "transfer-encoding", "content-length", "content-encoding", "host", "keep-alive"}


class Relay(BaseHTTPRequestHandler):
    """A request that came to a proxy; its kinds say in `handle_request` what becomes of it."""

    protocol_version = "HTTP/1.1"

    def handle_request(self) -> None:
        raise NotImplementedError

    def body(self) -> bytes:
        """Return what came with the request; to be asked for once."""
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def relay(self, server: str, body: bytes) -> None:
        """Ask a server for what was asked here, and pass its answer back."""
        headers = {k: v for k, v in self.headers.items() if k.lower() not in _HOP_BY_HOP}
        answer = requests.request(self.command, server + self.path, data=body, headers=headers, timeout=60)
        self.answer(answer.status_code, answer.headers, answer.content)

    def answer(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            if name.lower() not in _HOP_BY_HOP:
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(b"" if self.command == "HEAD" else body)

    def _handle(self) -> None:
        self.handle_request()

    do_GET = do_POST = do_HEAD = do_DELETE = do_PUT = _handle

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing on standard error."""


@contextmanager
def served(handler: type[Relay], tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """Serve on a free port in a thread, and yield the address."""
    server = ThreadingHTTPServer((HOST, 0), handler)
    if tls:
        # The handshake is each connection's own, so that no client can hold up the others.
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"{'https' if tls else 'http'}://{HOST}:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
