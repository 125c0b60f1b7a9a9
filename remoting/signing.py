"""Signatures of requests, as RocketMQ's clients make them: HMAC-SHA1 of the header's values and the body, in base64.

The values are those of all ext fields but ``Signature`` itself, in the order of the fields' names, one behind the other
without anything between them (Apache's ``AclClientRPCHook`` and ``AclUtils``).
"""

from __future__ import annotations

import hmac
from base64 import b64encode
from collections.abc import Mapping

__all__ = ["ACCESS_KEY", "SECURITY_TOKEN", "SIGNATURE", "fits", "sign", "signed_bytes"]

ACCESS_KEY, SIGNATURE, SECURITY_TOKEN = "AccessKey", "Signature", "SecurityToken"
_UNIQUE_KEY_QUERY = "_UNIQUE_KEY_QUERY"
_LAST_WITHOUT_IT = 399  # V4_9_3: clients up to it add that field after they have signed


def signed_bytes(ext: Mapping[str, str], body: bytes, version: int = 1 << 30) -> bytes:
    """The bytes that a request's signature covers."""
    left_out = (SIGNATURE, _UNIQUE_KEY_QUERY) if version <= _LAST_WITHOUT_IT else (SIGNATURE,)
    values = [ext[name] for name in sorted(ext) if name not in left_out]
    # Fields read by `remoting.odd_fields` may hold lone surrogates, which UTF-8 alone refuses.
    return "".join(value for value in values if value is not None).encode("utf-8", "surrogatepass") + body


def sign(ext: Mapping[str, str], body: bytes, secret_key: str, version: int = 1 << 30) -> str:
    """Make the signature of a request.

    >>> sign({"AccessKey": "reader", "topic": "T"}, b"body", "12345678")
    'mALpykR+5Rk+PrdUPAfV/hpNpcY='
    """
    digest = hmac.digest(secret_key.encode(), signed_bytes(ext, body, version), "sha1")
    return b64encode(digest).decode()


def fits(signature: str | None, ext: Mapping[str, str], body: bytes, secret_key: str, version: int) -> bool:
    """True if a signature is right for this request. Compares in constant time, so that nobody can guess it by time."""
    if signature is None:
        return False
    return hmac.compare_digest(sign(ext, body, secret_key, version).encode(), signature.encode("utf-8", "replace"))
