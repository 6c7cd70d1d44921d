"""REST catalogs as companies run them: SeaweedFS that vends credentials, and a proxy with TLS or a signer before it."""

import base64
import json
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import boto3
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from kafka_lake.devstack.servers import EmbeddedObjectStore
from kafka_lake_tests.contract.kafka_security.certificates import Identity
from kafka_lake_tests.contract.relay import Relay, served

_ROLE = "arn:aws:iam::000000000000:role/lake"
SIGN = "/v1/aws/s3/sign"
"""Where PyIceberg has requests signed; Iceberg's Java library asks at the table's own path, by the specification."""


class VendingStore(EmbeddedObjectStore):
    """A store whose catalog gives whoever asks for them credentials for one table, for an hour."""

    def _options(self) -> list[str]:
        config = self.folder / "iam.json"
        config.write_text(json.dumps(_iam()))
        return [*super()._options(), f"-s3.iam.config={config}", f"-s3.iceberg.credentialRole={_ROLE}"]

    def session_properties(self) -> dict[str, str]:
        """Return the catalog's properties with temporary keys for all files instead of the lasting ones."""
        known = self.s3_properties()
        sts = boto3.client(
            "sts",
            endpoint_url=self.endpoint,
            region_name=known["s3.region"],
            aws_access_key_id=known["s3.access-key-id"],
            aws_secret_access_key=known["s3.secret-access-key"],
        )
        keys = sts.assume_role(RoleArn=_ROLE, RoleSessionName="tests")["Credentials"]
        return {
            **self.catalog_properties(),
            "s3.access-key-id": keys["AccessKeyId"],
            "s3.secret-access-key": keys["SecretAccessKey"],
            "s3.session-token": keys["SessionToken"],
        }


def _iam() -> dict[str, Any]:
    actions = [f"sts:AssumeRole{by}" for by in ("", "WithWebIdentity", "WithCredentials")]
    # The catalog itself, and whoever has lasting keys.
    trusted = [
        {"Effect": "Allow", "Principal": {kind: who}, "Action": actions}
        for kind, who in (("Federated", "iceberg-catalog"), ("AWS", "*"))
    ]
    allowed = {"Effect": "Allow", "Action": ["s3:*"], "Resource": ["*"]}
    return {
        "sts": {
            "tokenDuration": "1h",
            "maxSessionLength": "12h",
            "issuer": "tests",
            "signingKey": base64.b64encode(b"a key of thirty-two bytes, no less").decode(),
        },
        "policy": {"defaultEffect": "Deny", "storeType": "memory"},
        "policies": [{"name": "all", "document": {"Version": "2012-10-17", "Statement": [allowed]}}],
        "roles": [
            {
                "roleName": "lake",
                "roleArn": _ROLE,
                "trustPolicy": {"Version": "2012-10-17", "Statement": trusted},
                "attachedPolicies": ["all"],
            }
        ],
    }


def without_keys(properties: Mapping[str, str]) -> dict[str, str]:
    """Return a catalog's properties without any that are about files, but for the region.

    The server tells it as ``s3.region``, and Java knows it as ``client.region`` only.
    """
    return {key: value for key, value in properties.items() if not key.startswith("s3.") or key == "s3.region"}


class Proxy:
    """What came through a proxy before a REST catalog.

    Args:
        uri: Its address.
    """

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.clients: set[str] = set()
        """Names that clients gave themselves."""
        self.signed: set[tuple[str, str]] = set()
        """Client and method of the requests that were signed."""


@contextmanager
def proxied(store: EmbeddedObjectStore, identity: Identity | None = None) -> Iterator[Proxy]:
    """Run a proxy before the store's catalog that signs requests to its files too, by TLS if it has an identity."""
    keys = store.s3_properties()
    signer = S3SigV4Auth(Credentials(keys["s3.access-key-id"], keys["s3.secret-access-key"]), "s3", keys["s3.region"])

    class Handler(Relay):
        def handle_request(self) -> None:
            body = self.body()
            client = (self.headers.get("User-Agent") or "").partition("/")[0]
            found.clients.add(client)
            if self.path == SIGN or self.path.endswith("/sign"):
                return self._sign(client, json.loads(body))
            return self.relay(store.catalog_uri, body)

        def _sign(self, client: str, asked: dict[str, Any]) -> None:
            if not (self.headers.get("Authorization") or "").startswith("Bearer "):
                return self.answer(401, {}, b"{}")
            found.signed.add((client, asked["method"]))
            plain = {name: ",".join(values) for name, values in asked["headers"].items()}
            lower = {name.lower(): value for name, value in plain.items()}
            kept = {name: value for name, value in lower.items() if name.startswith("x-amz-") or name == "content-md5"}
            request = AWSRequest(asked["method"], asked["uri"], headers={**kept, "host": urlsplit(asked["uri"]).netloc})
            request.context["payload_signing_enabled"] = False
            signer.add_auth(request)
            signed = {name: [value] for name, value in request.headers.items()}
            reported = json.dumps({"uri": asked["uri"], "headers": signed}).encode()
            return self.answer(200, {"Content-Type": "application/json", "Cache-Control": "no-cache"}, reported)

    tls = None
    if identity:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(identity.certificate_file, identity.key_file())
    with served(Handler, tls) as address:
        found = Proxy(address)
        yield found
