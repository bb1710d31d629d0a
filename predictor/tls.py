"""Certificate, key and client CA of both listeners, read anew for the connection that comes after a change."""

from __future__ import annotations

import logging
import ssl
import threading
from dataclasses import dataclass
from pathlib import Path

import grpc

from engine.errors import ConfigError
from predictor.file_stamp import Stamp, file_stamp

logger = logging.getLogger("predictor")

_ED25519 = b"AwBQYDK2Vw"
"""The algorithm's identifier (RFC 8410, section 7) in the first line of a PKCS #8 key."""


@dataclass(frozen=True, slots=True)
class TlsIdentity:
    """What the files held: PEM bytes, and the same as a context for REST."""

    certificate: bytes
    key: bytes
    client_ca: bytes | None
    context: ssl.SSLContext


class TlsFiles:
    """The files of `--ssl_certfile`, `--ssl_keyfile` and `--ssl_client_ca`.

    With a client CA a client must present a certificate signed by it (mutual TLS). The files are looked at with each
    new connection; changed ones that cannot be used, such as a new certificate whose key has not been written yet,
    leave the old ones in use, and the log says so. Raises `ConfigError` where they cannot be used from the start.
    """

    def __init__(self, certfile: Path, keyfile: Path, client_ca: Path | None = None) -> None:
        self._certfile, self._keyfile, self._client_ca = certfile, keyfile, client_ca
        # NOTE: gRPC asks from threads of its own.
        self._lock = threading.Lock()
        self._stamps = self._current_stamps()
        self._identity = self._read()

    @property
    def wants_client_certificates(self) -> bool:
        return self._client_ca is not None

    def current(self) -> TlsIdentity:
        """What the next connection uses. Never raises."""
        with self._lock:
            stamps = self._current_stamps()
            if stamps != self._stamps:
                self._stamps = stamps
                try:
                    self._identity = self._read()
                    logger.info("The TLS files have changed: new connections use them")
                except ConfigError as error:
                    logger.warning("The TLS certificate stays as it was: %s", error)
            return self._identity

    def http_context(self) -> ssl.SSLContext:
        """For a listener of REST; it hands each connection over to the current files."""
        context = self._read().context

        def hand_over(connection: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _context: ssl.SSLContext) -> None:
            connection.context = self.current().context

        # NOTE: called in each handshake, also where the client names no server.
        context.sni_callback = hand_over
        return context

    def grpc_credentials(self) -> grpc.ServerCredentials:
        """For a listener of gRPC."""
        told = self.current()

        def fetch() -> grpc.ServerCertificateConfiguration | None:
            nonlocal told
            current = self.current()
            if current is told:
                return None
            told = current
            return _grpc_configuration(current)

        return grpc.dynamic_ssl_server_credentials(
            _grpc_configuration(told), fetch, require_client_authentication=self.wants_client_certificates
        )

    def _current_stamps(self) -> tuple[Stamp, ...]:
        return tuple(file_stamp(path) for path in (self._certfile, self._keyfile, self._client_ca) if path is not None)

    def _read(self) -> TlsIdentity:
        certificate = _read_bytes("ssl_certfile", self._certfile)
        key = _read_bytes("ssl_keyfile", self._keyfile)
        if _ED25519 in key:
            # NOTE: OpenSSL serves it, gRPC's own library takes it and then fails every handshake.
            raise ConfigError(
                f"ssl_keyfile {self._keyfile} is an Ed25519 key, which gRPC cannot use; take ECDSA or RSA"
            )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.set_alpn_protocols(["http/1.1"])
        _load_pair(context, self._certfile, self._keyfile)
        client_ca = None
        if self._client_ca is not None:
            client_ca = _read_bytes("ssl_client_ca", self._client_ca)
            _load_client_ca(context, self._client_ca)
        return TlsIdentity(certificate, key, client_ca, context)


def _grpc_configuration(identity: TlsIdentity) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration(
        [(identity.key, identity.certificate)], root_certificates=identity.client_ca
    )


def _read_bytes(flag: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{flag} {path} cannot be read: {error.strerror}") from None


class _EncryptedKeyError(Exception):
    """A password is asked for."""


def _refuse_password() -> str:
    # NOTE: without this OpenSSL would ask at the terminal and wait.
    raise _EncryptedKeyError


def _load_pair(context: ssl.SSLContext, certfile: Path, keyfile: Path) -> None:
    """Raises `ConfigError`."""
    try:
        context.load_cert_chain(certfile, keyfile, _refuse_password)
    except _EncryptedKeyError:
        raise ConfigError(f"ssl_keyfile {keyfile} is encrypted; give it without a password") from None
    except ssl.SSLError as error:
        if error.reason in ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH"):
            raise ConfigError(f"ssl_keyfile {keyfile} is not the key of ssl_certfile {certfile}") from None
        raise ConfigError(
            f"ssl_certfile {certfile} and ssl_keyfile {keyfile} must hold a PEM certificate (chain) and its PEM "
            f"private key: {error.reason or error}"
        ) from None
    except OSError as error:
        raise ConfigError(
            f"ssl_certfile {certfile} or ssl_keyfile {keyfile} cannot be read: {error.strerror}"
        ) from None


def _load_client_ca(context: ssl.SSLContext, path: Path) -> None:
    """Raises `ConfigError`."""
    try:
        context.load_verify_locations(path)
    except OSError as error:
        reason = (error.reason if isinstance(error, ssl.SSLError) else error.strerror) or error
        raise ConfigError(f"ssl_client_ca {path} must hold PEM certificates: {reason}") from None
    context.verify_mode = ssl.CERT_REQUIRED
    # NOTE: a session resumed by a ticket is not verified anew, and would outlive a client CA that was taken away.
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0
