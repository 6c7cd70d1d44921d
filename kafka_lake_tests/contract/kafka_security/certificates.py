"""Certificates for brokers and clients, made for a test session: a CA, a foreign CA, and such as have expired."""

import datetime as dt
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    pkcs12,
)
from cryptography.x509.oid import NameOID

PASSWORD = "hush-keyfile"
Key = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey
_DAY = dt.timedelta(days=1)


@dataclass(frozen=True)
class Identity:
    """A certificate, its key, and both as files."""

    certificate: x509.Certificate
    key: Key
    folder: Path
    name: str

    @property
    def certificate_pem(self) -> str:
        return self.certificate.public_bytes(Encoding.PEM).decode()

    @property
    def certificate_file(self) -> str:
        return self._write("crt.pem", self.certificate_pem.encode())

    def key_pem(self, form: PrivateFormat = PrivateFormat.PKCS8, password: str = "") -> str:
        protection = BestAvailableEncryption(password.encode()) if password else NoEncryption()
        return self.key.private_bytes(Encoding.PEM, form, protection).decode()

    def key_file(self, form: PrivateFormat = PrivateFormat.PKCS8, password: str = "") -> str:
        kind = "pkcs8" if form == PrivateFormat.PKCS8 else "traditional"
        return self._write(
            f"{kind}.{'encrypted' if password else 'open'}.key.pem", self.key_pem(form, password).encode()
        )

    @property
    def pkcs12_file(self) -> str:
        protection = BestAvailableEncryption(PASSWORD.encode())
        packed = pkcs12.serialize_key_and_certificates(b"me", self.key, self.certificate, None, protection)
        return self._write("p12", packed)

    def _write(self, ending: str, content: bytes) -> str:
        path = self.folder / f"{self.name}.{ending}"
        path.write_bytes(content)
        return str(path)


class Authority:
    """A CA of its own."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self.folder = folder
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        built = _builder(self._name, self._name, self._key, -1, 30).add_extension(x509.BasicConstraints(True, 0), True)
        self.identity = Identity(built.sign(self._key, hashes.SHA256()), self._key, folder, name)
        self.file = self.identity.certificate_file

    def issue(self, common_name: str, last_day: int = 10, elliptic: bool = False) -> Identity:
        """Return a certificate for localhost that is valid until so many days from now, in the past if below 0."""
        key: Key = (
            ec.generate_private_key(ec.SECP256R1()) if elliptic else rsa.generate_private_key(65537, key_size=2048)
        )
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
        hosts = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        built = _builder(subject, self._name, key, last_day - 20, last_day)
        built = built.add_extension(x509.SubjectAlternativeName(hosts), False)
        return Identity(built.sign(self._key, hashes.SHA256()), key, self.folder, f"{common_name}{last_day}{elliptic}")


def _builder(subject: x509.Name, issuer: x509.Name, key: Key, first: int, last: int) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + first * _DAY)
        .not_valid_after(now + last * _DAY)
    )
