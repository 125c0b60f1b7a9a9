"""Key-value configuration of a name server: namespace, key, value, kept in one JSON file.

Administrators keep the queue order of topics in it, under `ORDER_TOPIC_CONFIG`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from broker.net.channel import Channel
from broker.tables.late_tables import LateTable
from broker.tables.table_writer import NotYetError, TableBatch, TableWriter
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.headers import need_str
from remoting.json_dialect import dumps

if TYPE_CHECKING:
    from broker.net.processor import Handler
    from broker.tables.json_files import JsonFile

__all__ = ["KV_BYTES_MAX", "KvConfig"]

KV_BYTES_MAX = 4 << 20
"""Most bytes of key-value configuration, as `_kv_size` counts them: each change writes the whole file."""
_KV_ENTRY_BYTES = 100


class KvConfig:
    """Answers the requests about key-value configuration. Only the network loop uses it.

    Args:
        file: Where it lasts (``config/kvConfig.json``); None keeps it in memory.
        tables: Writes it in a thread; None writes it at once.
    """

    def __init__(self, file: JsonFile | None, tables: TableWriter | None) -> None:
        self._file = file
        self.table: dict[str, dict[str, str]] = {}
        """Namespace to its entries, those that are durable."""
        if file is not None:
            table = (file.load() or {}).get("configTable") or {}
            self.table = {str(name): {str(k): str(v) for k, v in entries.items()} for name, entries in table.items()}
        flat = {(name, key): value for name, entries in self.table.items() for key, value in entries.items()}
        self._late = LateTable(flat, self._save_kv, self._show_kv, self._count_kv)
        self._flat = flat
        if tables is not None:
            self._late.written_by(tables)
        self.bytes_max = KV_BYTES_MAX
        self.bytes = 0
        """Bytes of key-value configuration, including changes that are being written."""
        self._count_kv()

    def handlers(self) -> Mapping[int, Handler]:
        """List what it answers: request code to method."""
        return {
            RequestCode.PUT_KV_CONFIG: self.put_kv,
            RequestCode.GET_KV_CONFIG: self.get_kv,
            RequestCode.DELETE_KV_CONFIG: self.delete_kv,
            RequestCode.GET_KVLIST_BY_NAMESPACE: self.get_kv_list,
        }

    def put_kv(self, _channel: Channel, command: RemotingCommand, _now_ms: int) -> RemotingCommand:
        """PUT_KV_CONFIG."""
        ext = command.ext
        namespace, key, value = need_str(ext, "namespace"), need_str(ext, "key"), need_str(ext, "value")
        before = self._late.newest((namespace, key))
        more = _kv_size(namespace, key, value) - (0 if before is None else _kv_size(namespace, key, before))
        if more > 0 and self.bytes + more > self.bytes_max:
            remark = (
                f"key-value configuration has {self.bytes} bytes, and {more} more would exceed "
                f"the limit of {self.bytes_max}: delete some"
            )
            return command.reply(ResponseCode.SYSTEM_ERROR, remark)
        return self._change_kv(command, namespace, key, value)

    def get_kv(self, _channel: Channel, command: RemotingCommand, _now_ms: int) -> RemotingCommand:
        """GET_KV_CONFIG."""
        namespace, key = need_str(command.ext, "namespace"), need_str(command.ext, "key")
        value = self.table.get(namespace, {}).get(key)
        if value is None:
            remark = f"No config item, Namespace: {namespace} Key: {key}"
            return command.reply(ResponseCode.QUERY_NOT_FOUND, remark)
        return command.reply(ext={"value": value})

    def delete_kv(self, _channel: Channel, command: RemotingCommand, _now_ms: int) -> RemotingCommand:
        """DELETE_KV_CONFIG."""
        namespace, key = need_str(command.ext, "namespace"), need_str(command.ext, "key")
        if self._late.pending((namespace, key)) is None and (namespace, key) not in self._flat:
            return command.reply()
        return self._change_kv(command, namespace, key, None)

    def get_kv_list(self, _channel: Channel, command: RemotingCommand, _now_ms: int) -> RemotingCommand:
        """GET_KVLIST_BY_NAMESPACE."""
        namespace = need_str(command.ext, "namespace")
        table = self.table.get(namespace)
        if table is None:
            return command.reply(ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {namespace}")
        return command.reply(body=dumps({"table": table}))

    def _change_kv(self, command: RemotingCommand, namespace: str, key: str, value: str | None) -> RemotingCommand:
        """Set or delete one entry."""

        def begin() -> TableBatch[tuple[str, str], str]:
            before = self._late.newest((namespace, key))
            self.bytes -= 0 if before is None else _kv_size(namespace, key, before)
            self.bytes += 0 if value is None else _kv_size(namespace, key, value)
            return self._late.change({(namespace, key): value})

        if self._late.late:
            raise NotYetError(begin, command.reply)
        batch = begin()
        self._late.settle()
        if batch.error is not None:
            raise batch.error
        return command.reply()

    def _save_kv(self, flat: dict[tuple[str, str], str]) -> None:
        """Write the changed entries; in the thread, or at once."""
        if self._file is not None:
            table: dict[str, dict[str, str]] = {}
            for (namespace, key), value in flat.items():
                table.setdefault(namespace, {})[key] = value
            self._file.save_tables({"configTable": table})

    def _count_kv(self) -> None:
        """Recount the bytes of the key-value configuration."""
        self.bytes = sum(_kv_size(name, key, value) for (name, key), value in self._late.newest_items().items())

    def _show_kv(self, changed: list[tuple[str, str]]) -> None:
        """Make entries visible that are durable now."""
        for namespace, key in changed:
            value = self._flat.get((namespace, key))
            if value is not None:
                self.table.setdefault(namespace, {})[key] = value
            elif namespace in self.table:
                self.table[namespace].pop(key, None)
                if not self.table[namespace]:  # otherwise names of empty namespaces would pile up
                    del self.table[namespace]


def _kv_size(namespace: str, key: str, value: str) -> int:
    return _KV_ENTRY_BYTES + len(namespace) + len(key) + len(value)
