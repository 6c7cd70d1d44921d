"""Networks that fail on command: an HTTP proxy before the catalog, TCP proxies before the brokers."""

import asyncio
import http.client
import json
import re
import socket
import struct
import threading
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

_TABLE = re.compile(r"^/v1/namespaces/[^/]+/tables/[^/]+$")
_HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "upgrade", "te", "trailer"}

LOSE, FAIL, SLOW = "lose", "fail", "slow"


@dataclass
class Fault:
    """What shall go wrong with the catalog.

    Args:
        action: ``lose``: the request is carried out, the answer never arrives. ``fail``: it is not carried out.
            ``slow``: it is carried out late.
        kind: ``publish``: commits that move main alone. ``stage``: commits that add a snapshot. ``commit``: any commit.
            ``request``: whatever it is.
        times: So many of them.
        status: What is answered; 0 closes the connection instead.
        delay: Seconds, for ``slow``.
    """

    action: str
    kind: str
    times: int = 1
    status: int = 0
    delay: float = 0.0


def kinds_of(method: str, path: str, body: bytes) -> set[str]:
    """Return what kinds of request this is.

    >>> body = b'{"updates": [{"action": "set-snapshot-ref", "ref-name": "main"}]}'
    >>> sorted(kinds_of("POST", "/v1/namespaces/n/tables/t", body))
    ['commit', 'publish', 'request']
    """
    kinds = {"request"}
    if method != "POST" or not _TABLE.match(path.partition("?")[0]):
        return kinds
    kinds.add("commit")
    updates = json.loads(body or b"{}").get("updates", [])
    actions = {update.get("action") for update in updates}
    if "add-snapshot" in actions:
        kinds.add("stage")
    elif any(u.get("action") == "set-snapshot-ref" and u.get("ref-name") == "main" for u in updates):
        kinds.add("publish")
    return kinds


class CatalogProxy:
    """An HTTP proxy on 127.0.0.1 before a catalog, faultless until told otherwise.

    Args:
        upstream_port: The catalog's port of 127.0.0.1.

    Attributes:
        injected: How many faults there were, by action and kind.
    """

    def __init__(self, upstream_port: int) -> None:
        self.upstream_port = upstream_port
        self.injected: Counter[str] = Counter()
        self._faults: list[Fault] = []
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        proxy = self

        class Handler(_Handler):
            owner = proxy

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True)

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def arm(self, fault: Fault) -> None:
        with self._lock:
            self._faults.append(fault)

    def disarm(self) -> None:
        with self._lock:
            self._faults.clear()

    def take(self, kinds: set[str]) -> Fault | None:
        """Return the fault that this request shall suffer and count it off."""
        with self._lock:
            for fault in self._faults:
                if fault.kind in kinds and fault.times > 0:
                    fault.times -= 1
                    self.injected[f"{fault.action} {fault.kind} {fault.status or ''}".strip()] += 1
                    return fault
        return None

    def pause(self, seconds: float) -> None:
        self._stopped.wait(seconds)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    owner: CatalogProxy
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def _any(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = self.owner.take(kinds_of(self.command, self.path, body))
        if fault and fault.action == FAIL:
            return self._suffer(fault)
        if fault and fault.action == SLOW:
            self.owner.pause(fault.delay)
        status, headers, content = self._forward(body)
        if fault and fault.action == LOSE:
            return self._suffer(fault)
        self._answer(status, headers, content)

    do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = _any

    def _forward(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        upstream = http.client.HTTPConnection("127.0.0.1", self.owner.upstream_port, timeout=60)
        try:
            headers = {k: v for k, v in self.headers.items() if k.lower() not in _HOP_BY_HOP}
            upstream.request(self.command, self.path, body or None, headers)
            answer = upstream.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            upstream.close()

    def _answer(self, status: int, headers: list[tuple[str, str]], content: bytes) -> None:
        self.send_response(status)
        for key, value in headers:
            if key.lower() not in _HOP_BY_HOP | {"date", "server"}:
                self.send_header(key, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _suffer(self, fault: Fault) -> None:
        if fault.status:
            error = {"message": "chaos", "type": "ChaosException", "code": fault.status}
            content = json.dumps({"error": error}).encode()
            self._answer(fault.status, [("Content-Type", "application/json")], content)
            return
        self.close_connection = True
        # A reset, as of a peer that has died, instead of a polite end.
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()

    def finish(self) -> None:
        with suppress(OSError, ValueError):
            super().finish()

    def handle(self) -> None:
        with suppress(OSError, ValueError):
            super().handle()

    def log_message(self, format: str, *args: Any) -> None:
        return


class TcpProxy:
    """Ports of 127.0.0.1 that lead to others, all of which can be cut or stalled at once; a context manager.

    Args:
        targets: The ports that they lead to.
    """

    def __init__(self, targets: list[int]) -> None:
        self._targets = targets
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._servers: list[asyncio.Server] = []
        self._writers: set[asyncio.StreamWriter] = set()
        self._flows = asyncio.Event()
        self._cut = False
        self.ports: list[int] = []

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def cut(self) -> None:
        """Break all connections and every new one, until ``restore``."""
        self._do(self._cut_now)

    def stall(self) -> None:
        """Let nothing through in either direction, without a word, until ``restore``."""
        self._do(self._flows.clear)

    def restore(self) -> None:
        self._do(self._restore_now)

    def _do(self, action: Any) -> None:
        async def run() -> None:
            action()

        asyncio.run_coroutine_threadsafe(run(), self._loop).result(10)

    def _cut_now(self) -> None:
        self._cut = True
        for writer in self._writers:
            writer.transport.abort()

    def _restore_now(self) -> None:
        self._cut = False
        self._flows.set()

    async def _listen(self) -> None:
        self._flows.set()
        for target in self._targets:
            server = await asyncio.start_server(self._handler(target), "127.0.0.1", 0)
            self._servers.append(server)
            self.ports.append(server.sockets[0].getsockname()[1])

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        self._cut_now()
        tasks = [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _handler(self, target: int) -> Any:
        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if self._cut:
                writer.transport.abort()
                return
            try:
                far_reader, far_writer = await asyncio.open_connection("127.0.0.1", target)
            except OSError:
                writer.transport.abort()
                return
            ends = {writer, far_writer}
            self._writers |= ends
            try:
                with suppress(asyncio.CancelledError):
                    await asyncio.gather(self._pump(reader, far_writer), self._pump(far_reader, writer))
            finally:
                self._writers -= ends
                for end in ends:
                    end.transport.abort()

        return handle

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                await self._flows.wait()
                writer.write(data)
                await writer.drain()
        # One direction has ended: so has the connection.
        with suppress(OSError):
            writer.close()
