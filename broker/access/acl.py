"""Access control: with ``aclEnable`` each request is checked before its processor gets it.

The order of the checks is that of Apache's ``PlainPermissionManager``:

1. whether the address needs no account; 2. the account; 3. whether the address needs no signature; 4. the signature;
5. the account's rights to the topics and groups of the request.

A refused request is answered with NO_PERMISSION and the reason; the connection stays usable.
`broker.access.access_table` lists what each request needs.
"""

from __future__ import annotations

import hmac
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from broker.access.access_table import ACCESS, ADMIN, ANYBODY, NOBODY, Need, Rule
from broker.access.acl_file import AclFileError
from broker.access.acl_rules import PUB, Account, AclRules
from broker.net.channel import Channel, peer_text
from remoting.codes import ResponseCode
from remoting.command import RemotingCommand
from remoting.errors import ProtocolError
from remoting.signing import ACCESS_KEY, SIGNATURE, fits
from store.disk.errors import StoreError

if TYPE_CHECKING:
    from broker.net.clients import ClientInfo
    from store.disk.files import Files

__all__ = ["Acl"]

_LOG = logging.getLogger(__name__)
_TRACES = ("RMQ_SYS_TRACE_TOPIC", PUB)


class Acl:
    """The rules of a file, and the check of each request against them.

    Raises AclFileError if the file is missing or invalid: a broker without its rules must not start.
    """

    def __init__(self, files: Files, path: Path, body_max_bytes: int = 4 << 20) -> None:
        """``body_max_bytes``: the longest body whose signature is checked; other requests wait during the check."""
        self._files = files
        self._body_max_bytes = body_max_bytes
        self._path = path
        self._seen: bytes | None = self._read()
        self._rules = self._parse(self._seen)
        self.trouble = ""
        """Why the present file cannot be used; empty if it can."""
        if files.open_to_others(path) & 0o007:
            _LOG.warning("%s has secret keys in it and is open to all users: run chmod o= %s", path, path)

    def _read(self) -> bytes:
        try:
            return self._files.read_file(self._path)
        except StoreError as error:
            raise AclFileError(f"aclEnable=true needs the file {self._path}: {error}") from error

    def _parse(self, data: bytes) -> AclRules:
        try:
            return AclRules.read(data)
        except AclFileError as error:
            raise AclFileError(f"{self._path}: {error}") from None

    def reload(self) -> bool:
        """Read the file again if it has changed; answer whether there are new rules.

        An invalid or missing file changes nothing, and is logged once, not at each look.
        """
        data: bytes | None = None
        try:
            data = self._read()
            if data == self._seen:
                return False
            self._rules = self._parse(data)
        except AclFileError as error:
            if data != self._seen or str(error) != self.trouble:
                _LOG.error("the access rules stay as they were: %s", error)
            self._seen, self.trouble = data, str(error)
            return False
        self._seen, self.trouble = data, ""
        _LOG.info("new access rules from %s: %d accounts", self._path, len(self._rules.accounts))
        return True

    def guard(self, channel: Channel, command: RemotingCommand) -> RemotingCommand | None:
        """Return the reply that refuses a request by the table `ACCESS`, or None if it is allowed."""
        rule = ACCESS.get(command.code)
        if rule is not None and rule.role is ANYBODY:
            return None
        return self._reply(channel, command, self._reason(channel, command, rule))

    def may(self, channel: Channel, command: RemotingCommand, needs: Iterable[Need]) -> RemotingCommand | None:
        """Return the reply that refuses a request whose topics are known only now, or None if it is allowed.

        Checks account and signature in any case, even for requests that anybody may send.
        """
        account = self._account(channel, command)
        reason = _denied(account, needs) if isinstance(account, Account) else account
        return self._reply(channel, command, reason)

    def client_may(self, client: ClientInfo, needs: Iterable[Need]) -> bool:
        """True if a connected client's account has all the rights that are needed."""
        rules, address = self._rules, client.channel.peer[0]
        account = rules.accounts.get(client.account)
        if any(matches(address) for matches in rules.white):
            return True
        return account is not None and (account.is_white(address) or _denied(account, needs) is None)

    def knows(self, access_key: str, secret_key: str) -> bool:
        """True if there is an account with this secret: for a door that has no signatures. Any thread."""
        account = self._rules.accounts.get(access_key)
        wanted = secret_key if account is None else account.secret_key
        return hmac.compare_digest(wanted.encode(), secret_key.encode()) and account is not None

    def refusal(self, access_key: str, topic: str, right: int) -> str:
        """Say why an account has no right to a topic (empty: to all of them), or nothing. Any thread."""
        account = self._rules.accounts.get(access_key)
        if account is None:
            return f"No acl config for {access_key:.100}"
        if account.admin:
            return ""
        if not topic:
            return f"Need admin permission for all topics, but accessKey={access_key:.100} is no admin: name a topic"
        return _denied(account, [(topic, right)]) or ""

    def _reply(self, channel: Channel, command: RemotingCommand, reason: str | None) -> RemotingCommand | None:
        if reason is None:
            return None
        access_key = (command.ext.get(ACCESS_KEY) or "nobody")[:100]
        _LOG.warning("%s: request %d of %s refused: %s", peer_text(channel), command.code, access_key, reason)
        return command.reply(ResponseCode.NO_PERMISSION, reason)

    def _reason(self, channel: Channel, command: RemotingCommand, rule: Rule | None) -> str | None:
        account = self._account(channel, command)
        if not isinstance(account, Account):
            return account
        if rule is None or rule.role is NOBODY:
            return f"No account may send request code={command.code}: the access table does not list it"
        if account.admin:
            return None
        if rule.role is ADMIN:
            key = account.access_key
            return f"Need admin permission for request code={command.code}, but accessKey={key} is not"
        try:
            needs = list(rule.of(command))
        except (ProtocolError, KeyError, TypeError, AttributeError) as error:
            return f"Request code={command.code} does not name its topic or group: {error!r:.200}"
        return _denied(account, needs)

    def _account(self, channel: Channel, command: RemotingCommand) -> Account | str | None:
        """The sender of a request: an account, None for an address that needs none, or a text that says why it is
        refused."""
        rules, address = self._rules, channel.peer[0]
        if any(matches(address) for matches in rules.white):
            return None
        ext = command.ext
        access_key = ext.get(ACCESS_KEY)
        if access_key is None:
            return "No accessKey is configured"
        account = rules.accounts.get(access_key)
        if account is None:
            return f"No acl config for {access_key:.100}"
        if account.is_white(address):
            return None
        if len(command.body) > self._body_max_bytes:
            return f"A signed body may have {self._body_max_bytes} bytes at most, this one has {len(command.body)}"
        if not fits(ext.get(SIGNATURE), ext, command.body, account.secret_key, command.version):
            return f"Check signature failed for accessKey={access_key}"
        return account


def _denied(account: Account, needs: Iterable[Need]) -> str | None:
    if account.admin:
        return None
    for topic, right in needs:
        # Clients send message traces with the same account as the messages themselves.
        refusal = None if (topic, right) == _TRACES else account.refusal(topic, right)
        if refusal is not None:
            return refusal
    return None
