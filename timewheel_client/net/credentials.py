"""A client's account, for brokers that serve signed requests only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from remoting.signing import ACCESS_KEY, SIGNATURE, sign

__all__ = ["Credentials", "credentials_of"]


@dataclass(frozen=True, slots=True)
class Credentials:
    """An account's access key and its secret key, which is never sent or shown."""

    access_key: str
    secret_key: str = field(repr=False)

    def signed(self, ext: Mapping[str, str] | None, body: bytes) -> dict[str, str]:
        """A request's fields with the access key and the signature of all of them and the body."""
        fields = {**(ext or {}), ACCESS_KEY: self.access_key}
        fields[SIGNATURE] = sign(fields, body, self.secret_key)
        return fields


def credentials_of(access_key: str | None, secret_key: str | None) -> Credentials | None:
    """Make credentials of two arguments; raises ValueError if only one of them is given."""
    if not access_key and not secret_key:
        return None
    if not access_key or not secret_key:
        missing = "secret_key" if access_key else "access_key"
        raise ValueError(f"access_key and secret_key belong together: {missing} is missing")
    return Credentials(access_key, secret_key)
