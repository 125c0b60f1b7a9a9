"""Signatures of requests."""

import base64
import hashlib
import hmac

from hypothesis import given
from hypothesis import strategies as st

from remoting.signing import fits, sign, signed_bytes

EXT = {"topic": "T", "AccessKey": "reader", "b": "größe", "Signature": "old"}


def test_what_is_signed():
    """Values in the order of the names, capitals before small letters, then the body."""
    assert signed_bytes(EXT, b"\xff\x00") == "readergrößeT".encode() + b"\xff\x00"
    assert signed_bytes({}, b"") == b""


def test_older_clients_sign_before_they_add_the_query_flag():
    ext = {"key": "k", "_UNIQUE_KEY_QUERY": "true"}
    assert signed_bytes(ext, b"", 399) == b"k"
    assert signed_bytes(ext, b"", 400) == b"truek"


@given(st.dictionaries(st.text(max_size=5), st.text(max_size=5)), st.binary(max_size=20), st.text(min_size=1))
def test_against_the_definition(ext, body, secret):
    text = "".join(value for name, value in sorted(ext.items()) if name != "Signature")
    digest = hmac.new(secret.encode(), text.encode() + body, hashlib.sha1).digest()
    assert sign(ext, body, secret) == base64.b64encode(digest).decode()


def test_fits():
    signature = sign(EXT, b"body", "12345678")
    assert fits(signature, EXT, b"body", "12345678", 500)
    for wrong in (None, "", "é", signature[:-1], signature.lower()):
        assert not fits(wrong, EXT, b"body", "12345678", 500)
    assert not fits(signature, EXT, b"body2", "12345678", 500)
    assert not fits(signature, EXT | {"topic": "U"}, b"body", "12345678", 500)
    assert not fits(signature, EXT, b"body", "12345679", 500)
