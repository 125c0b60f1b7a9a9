"""TLS on the broker's ports: certificates and sessions, bytes in and bytes out. This file uses no socket.

If a certificate is configured, the first byte of a connection shows its kind. A TLS hello begins with 0x16. A frame of
RocketMQ never does, because it would be 369 MB long. The modes are Apache's: ``permissive`` serves both, ``enforcing``
TLS only, ``disabled`` plain connections only.
"""

from __future__ import annotations

import logging
import ssl
from pathlib import Path
from typing import TYPE_CHECKING

from broker.config.key import ConfigError

if TYPE_CHECKING:
    from broker.config.broker_config import BrokerConfig

__all__ = ["HELLO", "Tls", "TlsError", "TlsSession", "make_tls"]

_LOG = logging.getLogger(__name__)

HELLO = 0x16
"""First byte of a TLS connection: a handshake record."""
_READ_BYTES = 256 << 10


class TlsError(Exception):
    """A session that cannot continue; the text says why."""


def make_tls(config: BrokerConfig) -> Tls | None:
    """Make the `Tls` of a configuration; None without a certificate or with ``disabled``. Raises ConfigError."""
    mode, certificate = config.get_text("tls.server.mode"), config.get_text("tls.server.certPath")
    if mode == "disabled" or (mode == "permissive" and not certificate):
        return None
    if not certificate:
        raise ConfigError("tls.server.mode=enforcing: expected tls.server.certPath with the certificate")
    trust = config.get_text("tls.server.trustCertPath")
    need = config.get_text("tls.server.need.client.auth")
    if config.get_bool("tls.server.authClient") and need == "none":
        need = "require"
    if need != "none" and not trust:
        raise ConfigError(
            f"tls.server.need.client.auth={need}: expected tls.server.trustCertPath to check clients with"
        )
    return Tls(
        Path(certificate),
        Path(config.get_text("tls.server.keyPath") or certificate),
        config.get_text("tls.server.keyPassword"),
        enforcing=mode == "enforcing",
        trust=Path(trust) if trust else None,
        verify={"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "require": ssl.CERT_REQUIRED}[need],
    )


class Tls:
    """The certificate and the rules of new sessions.

    Args:
        certificate, key: PEM files; the certificate's may hold a chain.
        password: Of the key; empty for none.
        enforcing: Whether plain connections are refused.
        trust: PEM file of the authorities whose client certificates are accepted.
        verify: Whether clients must present a certificate.
    """

    def __init__(
        self,
        certificate: Path,
        key: Path,
        password: str = "",
        *,
        enforcing: bool = False,
        trust: Path | None = None,
        verify: ssl.VerifyMode = ssl.CERT_NONE,
    ) -> None:
        self.enforcing = enforcing
        self._certificate = certificate
        self._key = key
        self._password = password
        self._trust = trust
        self._verify = verify
        # Before the files are read: if they change meanwhile, the next `reload` sees it.
        self._stamps = self._stamp()
        self._context = self._make()
        self.trouble = ""
        """Why the files, as they are now, cannot be used."""

    def _make(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.verify_mode = self._verify
        try:
            context.load_cert_chain(self._certificate, self._key, lambda: self._password)
            if self._trust is not None:
                context.load_verify_locations(self._trust)
        except (OSError, ValueError) as error:
            named = dict.fromkeys(path for path in (self._certificate, self._key, self._trust) if path is not None)
            advice = ""
            if self._key == self._certificate and isinstance(error, ssl.SSLError):
                advice = " (is the key in a file of its own? tls.server.keyPath names it)"
            raise ConfigError(f"TLS: cannot use {', '.join(map(str, named))}: {error}{advice}") from None
        return context

    def _stamp(self) -> list[tuple[int, int]]:
        """The files' modification times; a missing file has a value of its own."""
        stamps = []
        for path in filter(None, (self._certificate, self._key, self._trust)):
            try:
                status = path.stat()
                # The inode too: a file that took another's place may have the same time.
                stamps.append((status.st_mtime_ns, status.st_ino))
            except OSError:
                stamps.append((0, 0))
        return stamps

    def reload(self) -> bool:
        """Load changed files again, for new connections; invalid ones change nothing."""
        stamps = self._stamp()
        if stamps == self._stamps:
            return False
        self._stamps = stamps
        try:
            self._context = self._make()
        except ConfigError as error:
            _LOG.error("the new certificate is not used, the old one stays: %s", error)
            self.trouble = str(error)
            return False
        self.trouble = ""
        _LOG.info("new connections get the certificate that is now in %s", self._certificate)
        return True

    def session(self) -> TlsSession:
        """Begin a session as a server."""
        return TlsSession(self._context)


class TlsSession:
    """One connection's TLS: turns bytes from the socket into plain bytes, and plain bytes into bytes for the socket."""

    __slots__ = ("_incoming", "_object", "_outgoing", "_shaken")

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._shaken = False

    def receive(self, data: memoryview | bytes) -> tuple[bytes, bool]:
        """Decrypt bytes of the socket; return the plain bytes, and whether the peer has closed the session.

        Raises TlsError; `outgoing` then has the alert for the peer.
        """
        self._incoming.write(data)
        parts: list[bytes] = []
        try:
            if not self._shaken:
                self._object.do_handshake()
                self._shaken = True
            while part := self._object.read(_READ_BYTES):
                parts.append(part)
            return b"".join(parts), True
        except ssl.SSLWantReadError:
            return b"".join(parts), False
        except ssl.SSLZeroReturnError:
            return b"".join(parts), True
        except ssl.SSLError as error:
            raise TlsError(error.reason or str(error)) from error

    def encrypt(self, data: bytes) -> None:
        """Encrypt plain bytes into `outgoing`; only after the handshake. Raises TlsError."""
        try:
            self._object.write(data)
        except ssl.SSLError as error:
            raise TlsError(error.reason or str(error)) from error

    @property
    def waiting(self) -> bool:
        """True if there are bytes for the socket."""
        return self._outgoing.pending > 0

    def outgoing(self) -> bytes:
        """Return the bytes for the socket."""
        return self._outgoing.read()
