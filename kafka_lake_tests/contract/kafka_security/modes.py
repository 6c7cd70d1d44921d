"""Every way to authenticate, as the properties that a user sets."""

from dataclasses import dataclass

from cryptography.hazmat.primitives.serialization import PrivateFormat

from kafka_lake_tests.contract.kafka_security.broker import SecureBroker
from kafka_lake_tests.contract.kafka_security.certificates import PASSWORD

SECRET = "hush-reader"
_FORMS = (PrivateFormat.PKCS8, PrivateFormat.TraditionalOpenSSL)


@dataclass(frozen=True)
class Mode:
    """A client.

    Args:
        properties: What the user sets.
        principal: Who it is to the broker's authorizer; None if it needs no right.
    """

    properties: dict[str, str]
    principal: str | None


class Clients:
    """The clients of a broker, by the name of how they authenticate."""

    def __init__(self, broker: SecureBroker, tokens: str) -> None:
        self._broker = broker
        self._tokens = tokens
        self._certificate = broker.authority.issue("reader-mtls")
        self._elliptic = broker.authority.issue("reader-mtls", elliptic=True)

    def __getitem__(self, name: str) -> Mode:
        mode: Mode = getattr(self, "_" + name.lower().replace("-", "_").replace(" ", "_"))()
        return mode

    @property
    def private_lines(self) -> list[str]:
        """Return what nobody may see of the private keys, in the forms that they are in anywhere."""
        keys = [me.key_pem(form) for me in (self._certificate, self._elliptic) for form in _FORMS]
        return [line for key in keys for line in key.splitlines() if not line.startswith("-----")]

    def tls(self, listener: str, protocol: str) -> dict[str, str]:
        return {
            "bootstrap.servers": self._broker.address(listener),
            "security.protocol": protocol,
            "ssl.ca.location": self._broker.authority.file,
        }

    def sasl(self, mechanism: str, user: str = "reader", password: str = SECRET) -> dict[str, str]:
        own = {"sasl.mechanism": mechanism, "sasl.username": user, "sasl.password": password}
        return self.tls("SASL_SSL", "SASL_SSL") | own

    def mtls(self, **more: str) -> dict[str, str]:
        return self.tls("MTLS", "SSL") | {name.replace("_", "."): value for name, value in more.items()}

    def _plaintext(self) -> Mode:
        return Mode({"bootstrap.servers": self._broker.address("PLAINTEXT")}, None)

    def _ssl(self) -> Mode:
        return Mode(self.tls("SSL", "SSL"), None)

    def _ssl_ca_inline(self) -> Mode:
        given = self.tls("SSL", "SSL")
        del given["ssl.ca.location"]
        return Mode(given | {"ssl.ca.pem": self._broker.authority.identity.certificate_pem}, None)

    def _mtls_pkcs8(self) -> Mode:
        me = self._certificate
        given = self.mtls(ssl_certificate_location=me.certificate_file, ssl_key_location=me.key_file())
        return Mode(given, "reader-mtls")

    def _mtls_pkcs1(self) -> Mode:
        me = self._certificate
        key = me.key_file(PrivateFormat.TraditionalOpenSSL)
        return Mode(self.mtls(ssl_certificate_location=me.certificate_file, ssl_key_location=key), "reader-mtls")

    def _mtls_encrypted(self) -> Mode:
        me = self._certificate
        key = me.key_file(password=PASSWORD)
        own = {"ssl_certificate_location": me.certificate_file, "ssl_key_location": key, "ssl_key_password": PASSWORD}
        return Mode(self.mtls(**own), "reader-mtls")

    def _mtls_inline(self) -> Mode:
        me = self._elliptic
        key = me.key_pem(PrivateFormat.TraditionalOpenSSL)
        return Mode(self.mtls(ssl_certificate_pem=me.certificate_pem, ssl_key_pem=key), "reader-mtls")

    def _mtls_pkcs12(self) -> Mode:
        own = {"ssl_keystore_location": self._certificate.pkcs12_file, "ssl_keystore_password": PASSWORD}
        return Mode(self.mtls(**own), "reader-mtls")

    def _plain(self) -> Mode:
        return Mode(self.sasl("PLAIN"), "reader")

    def _scram_sha_256(self) -> Mode:
        return Mode(self.sasl("SCRAM-SHA-256"), "reader")

    def _scram_sha_512(self) -> Mode:
        return Mode(self.sasl("SCRAM-SHA-512"), "reader")

    def _oauthbearer(self) -> Mode:
        return Mode(self.oauth(SECRET), "reader-oauth")

    def oauth(self, secret: str) -> dict[str, str]:
        return self.tls("SASL_SSL", "SASL_SSL") | {
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.client.id": "reader-oauth",
            "sasl.oauthbearer.client.secret": secret,
            "sasl.oauthbearer.scope": "kafka",
            "sasl.oauthbearer.extensions": "logicalCluster=lkc-1,identityPoolId=pool-1",
            "sasl.oauthbearer.token.endpoint.url": f"{self._tokens}/token",
        }
