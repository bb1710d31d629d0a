"""Certificates for tests: an authority that signs servers' and clients' own."""

from __future__ import annotations

import datetime
import ipaddress
import os
import ssl
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

DAY = datetime.timedelta(days=1)


@dataclass(frozen=True)
class Pair:
    """Paths of a PEM certificate and of its key."""

    cert: Path
    key: Path

    def replace_with(self, other: Pair) -> None:
        """Certificate first, then the key, each moved into place: as a rotation in two steps does it."""
        for mine, new in ((self.cert, other.cert), (self.key, other.key)):
            fresh = mine.with_suffix(".new")
            fresh.write_bytes(new.read_bytes())
            os.replace(fresh, mine)


class Authority:
    """A certificate authority of its own. ca: path of its PEM certificate."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self._folder, self._name = folder, name
        folder.mkdir(parents=True, exist_ok=True)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._serial = 0
        certificate = (
            self._builder(self._subject, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.ca = folder / f"{name}.pem"
        self.ca.write_bytes(certificate.public_bytes(Encoding.PEM))

    def issue(self, name: str, *, password: bytes | None = None) -> Pair:
        """A certificate for localhost and 127.0.0.1, for a server or a client."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = (
            self._builder(subject, key.public_key())
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        pair = Pair(self._folder / f"{self._name}-{name}.crt", self._folder / f"{self._name}-{name}.key")
        pair.cert.write_bytes(certificate.public_bytes(Encoding.PEM))
        encryption = BestAvailableEncryption(password) if password else NoEncryption()
        pair.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption))
        return pair

    def context(self, client: Pair | None = None) -> ssl.SSLContext:
        """For a client that trusts this authority alone."""
        context = ssl.create_default_context(cafile=self.ca)
        if client is not None:
            context.load_cert_chain(client.cert, client.key)
        return context

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        self._serial += 1
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._subject)
            .public_key(key)
            .serial_number(self._serial)
            .not_valid_before(now - DAY)
            .not_valid_after(now + DAY)
        )
