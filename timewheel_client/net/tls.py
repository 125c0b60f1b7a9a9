"""Turns the ``tls`` argument into an ``ssl.SSLContext``. This file uses no socket.

===================  =============================================================================================
``False``            plain connections (the default)
``True``             TLS; the peer's certificate is checked with the authorities that the system trusts
a path               TLS; checked with the authorities, or the one self-signed certificate, of this PEM file
an ``SSLContext``    TLS as it says, see `tls_context` for one with a client's certificate
===================  =============================================================================================

Name servers and brokers are treated alike. Certificate and host name are checked unless a context says otherwise; the
host is that of the dialled address (for a broker, the address in the route).
"""

from __future__ import annotations

import os
import ssl
from ssl import SSLContext

__all__ = ["SSLContext", "Tls", "context_of", "tls_context"]

Tls = bool | str | os.PathLike[str] | SSLContext


def tls_context(
    trust: str | os.PathLike[str] | None = None,
    *,
    certificate: str | os.PathLike[str] | None = None,
    key: str | os.PathLike[str] | None = None,
    key_password: str | None = None,
    verify: bool = True,
    check_hostname: bool = True,
) -> ssl.SSLContext:
    """Make a context for the ``tls`` argument of `Producer` and `Consumer`.

    Args:
        trust: PEM file with the authorities to check peers with; None: those that the system trusts.
        certificate, key: PEM files to show to peers that ask for a client's certificate; the key may stand in the
            certificate's file.
        key_password: Of the key, if it has one.
        verify: False checks nothing: anybody between client and broker can read and change everything. For tests.
        check_hostname: False checks the certificate, but not that it was issued for the dialled host.

    Raises ValueError for files that cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = verify and check_hostname
    context.verify_mode = ssl.CERT_REQUIRED if verify else ssl.CERT_NONE
    if key is not None and certificate is None:
        raise ValueError(f"tls: key {os.fspath(key)} was given without its certificate")
    try:
        if trust is not None:
            context.load_verify_locations(trust)
        elif verify:
            context.load_default_certs()
        if certificate is not None:
            context.load_cert_chain(certificate, key, lambda: key_password or "")
    except OSError as error:  # ssl.SSLError is one
        files = ", ".join(os.fspath(path) for path in (trust, certificate, key) if path is not None)
        raise ValueError(f"tls: cannot use {files}: {error.strerror or error}") from None
    return context


def context_of(tls: Tls) -> ssl.SSLContext | None:
    """Turn a ``tls`` argument into a context, None for plain connections; raises TypeError or ValueError."""
    if isinstance(tls, bool):
        return tls_context() if tls else None
    if isinstance(tls, ssl.SSLContext):
        return tls
    if isinstance(tls, str | os.PathLike):
        return tls_context(tls)
    raise TypeError(f"tls must be a bool, a path or an SSLContext, found {tls!r:.100} ({type(tls).__name__})")
