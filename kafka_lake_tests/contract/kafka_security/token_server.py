"""An identity provider's token endpoint and its keys: OAuth 2 client credentials, signed JWTs, a JWKS document."""

import base64
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

ISSUER, AUDIENCE = "https://idp.example", "kafka"


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class TokenServer:
    """Serves ``/token`` and ``/jwks`` on 127.0.0.1; a context manager.

    Args:
        clients: Secrets by client id.
        seconds: For how long a token is valid.
    """

    def __init__(self, clients: dict[str, str], seconds: int = 300) -> None:
        self.clients = clients
        self.seconds = seconds
        self.answered: list[tuple[str, int]] = []
        self._key = rsa.generate_private_key(65537, key_size=2048)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def token(self, client: str) -> str:
        now = int(time.time())
        claims = {
            "iss": ISSUER,
            "aud": AUDIENCE,
            "sub": client,
            "iat": now,
            "exp": now + self.seconds,
            "scope": "kafka",
        }
        head, body = (
            _base64(json.dumps(part).encode()) for part in ({"alg": "RS256", "kid": "k", "typ": "JWT"}, claims)
        )
        signature = self._key.sign(f"{head}.{body}".encode(), padding.PKCS1v15(), hashes.SHA256())
        return f"{head}.{body}.{_base64(signature)}"

    def jwks(self) -> dict[str, Any]:
        public = self._key.public_key().public_numbers()
        n, e = (_base64(number.to_bytes((number.bit_length() + 7) // 8, "big")) for number in (public.n, public.e))
        return {"keys": [{"kty": "RSA", "kid": "k", "use": "sig", "alg": "RS256", "n": n, "e": e}]}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(200, server.jwks())

            def do_POST(self) -> None:
                form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
                basic = self.headers.get("Authorization", "").removeprefix("Basic ")
                client, _, secret = base64.b64decode(basic).decode().partition(":")
                right = server.clients.get(client) == secret and form.get("grant_type") == ["client_credentials"]
                server.answered.append((client, 200 if right else 401))
                if right:
                    reported = {
                        "access_token": server.token(client),
                        "token_type": "Bearer",
                        "expires_in": server.seconds,
                    }
                    self._answer(200, reported)
                else:
                    self._answer(401, {"error": "invalid_client", "error_description": "no such client or secret"})

            def _answer(self, status: int, reported: dict[str, Any]) -> None:
                body = json.dumps(reported).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        return Handler
