"""A broker's settings at start: an Apache ``broker.conf``, options, and single settings, merged and checked.

Precedence, strongest first: settings (``--set key=value``), options (``--listen`` and so on), the file, the defaults.
Every value is text under its Apache name until it has been checked against `broker.config.config_keys`. For the log the
keys are sorted into three lists:

==============  ==========================================================================================
used            in `USED_KEYS`: has an effect here
no effect       in `NO_EFFECT_KEYS`: Apache's broker knows it, this one needs no such thing
unknown         neither: most likely a typing mistake
==============  ==========================================================================================

A key with a dot (``delay.windowMs``) is a plug-in's, named before the dot, and passed on to it as it is. If there is no
plug-in of that name, it is unknown.

Where a broker listens
    On 127.0.0.1 by default; ``--listen`` or ``bindAddress`` set another address. A ``brokerIP1`` that is not a loopback
    address means that other machines connect, so without a ``bindAddress`` the broker then listens on 0.0.0.0. The
    address that clients are told to dial is ``brokerIP1``, else the listening address, else (for 0.0.0.0) the address
    of the interface that the default route uses.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from ipaddress import IPv4Address, IPv4Network
from itertools import pairwise
from pathlib import Path
from types import EllipsisType

from broker.config.apache_keys import NO_EFFECT_KEYS, WARNINGS
from broker.config.config_keys import USED_KEYS, parse_address, parse_addresses
from broker.config.key import ConfigError, Key
from broker.config.own_keys import OWN_KEYS
from broker.config.properties_file import PropertiesError, lines_of_keys, parse_properties_file

__all__ = [
    "NO_EFFECT_KEYS",
    "OWN_KEYS",
    "USED_KEYS",
    "BrokerConfig",
    "ConfigError",
    "Key",
    "load_config",
    "parse_address",
    "parse_addresses",
    "read_config_file",
]

_WILDCARD = "0.0.0.0"
_MEANT_WHEN_EMPTY = frozenset({"plugins", "namesrvListen", "namesrvAddr", "brokerIP1", "logDir", "httpListen"})


class BrokerConfig:
    """A checked configuration.

    =================  =====================================================================================
    ``store_dir``      Path, the store directory
    ``listen_host``    str, IPv4 address to listen on
    ``listen_port``    int, 0: any free port
    ``vip_port``       int, listen_port - 2; 0: none
    ``advertised``     str, IPv4 address that routes and message ids carry
    ``broker_name``    str; ``cluster_name`` str
    ``namesrv_listen`` (host, port) of the embedded name server, None: none; port 0: any free port
    ``http_listen``    (host, port) of the HTTP port, None: none; port 0: any free port
    ``metrics_listen`` the same of the port of metrics alone
    ``namesrv_addr``   list of ``HOST:PORT``, external name servers to register with
    ``plugins``        list of str, names or ``package.module:Class``
    ``values``         dict of str to str: every key that was set, under its Apache name, plug-ins' keys too
    ``no_effect``      list of str, keys of Apache's that were set and have no effect
    ``unknown``        list of str, keys that were set and are unknown
    ``file``           Path of the configuration file that was read, None: there was none
    ``warnings``       list of str, sentences about settings that may not do what the user thinks
    =================  =====================================================================================

    Arguments take precedence over ``values``, and ``values`` is changed to agree with them. Raises ConfigError for an
    invalid value, TypeError if ``store_dir`` is no path.

    >>> config = BrokerConfig("/tmp/store", {"flushDiskType": "SYNC_FLUSH", "brokerNam": "b"}, listen_port=20911)
    >>> config.listen_port, config.vip_port, config.advertised, config.unknown
    (20911, 20909, '127.0.0.1', ['brokerNam'])
    >>> config.get_text("flushDiskType"), config.get_int("maxMessageSize"), config.get_bool("autoCreateTopicEnable")
    ('SYNC_FLUSH', 4194304, True)
    """

    __slots__ = (
        "acl_file",
        "advertised",
        "broker_name",
        "cluster_name",
        "file",
        "http_listen",
        "listen_host",
        "listen_port",
        "metrics_listen",
        "namesrv_addr",
        "namesrv_listen",
        "no_effect",
        "plugins",
        "store_dir",
        "unknown",
        "values",
        "vip_port",
        "warnings",
    )

    def __init__(
        self,
        store_dir: Path | str,
        values: Mapping[str, str] | None = None,
        *,
        listen_host: str | None = None,
        listen_port: int | None = None,
        advertised: str | None = None,
        broker_name: str | None = None,
        cluster_name: str | None = None,
        namesrv_listen: tuple[str, int] | EllipsisType | None = ...,
        namesrv_addr: list[str] | None = None,
        plugins: list[str] | None = None,
        file: Path | None = None,
    ) -> None:
        if not isinstance(store_dir, str | Path):
            raise TypeError(f"the store directory comes first, found {store_dir!r}")
        self.file = file
        given = dict(values or {})
        given["storePathRootDir"] = str(store_dir)
        for name, value in (
            ("bindAddress", listen_host),
            ("listenPort", listen_port),
            ("brokerIP1", advertised),
            ("brokerName", broker_name),
            ("brokerClusterName", cluster_name),
            ("namesrvAddr", None if namesrv_addr is None else ";".join(namesrv_addr)),
            ("plugins", None if plugins is None else ",".join(plugins)),
        ):
            if value is not None:
                given[name] = str(value)
        if not isinstance(namesrv_listen, EllipsisType):
            given["namesrvListen"] = "" if namesrv_listen is None else f"{namesrv_listen[0]}:{namesrv_listen[1]}"
        self.values: dict[str, str] = _checked(given)
        self.no_effect: list[str] = sorted(key for key in self.values if key in NO_EFFECT_KEYS)
        self.unknown: list[str] = sorted(
            key
            for key in self.values
            if key not in NO_EFFECT_KEYS and key not in USED_KEYS and not self._for_plugin(key)
        )
        self.warnings: list[str] = []
        self._derive()
        self._find_warnings()

    def _for_plugin(self, key: str) -> bool:
        """True if a plug-in may read a key. The name of a plug-in given by its class is not known yet."""
        name, dot, _ = key.partition(".")
        plugins = [plugin.strip() for plugin in self.get_text("plugins").split(",")]
        return bool(dot) and name != "tls" and (name in plugins or any(":" in plugin for plugin in plugins))

    def _derive(self) -> None:
        """Set the attributes from the checked values."""
        self.store_dir = Path(self.values["storePathRootDir"])
        self.broker_name = self.get_text("brokerName")
        self.cluster_name = self.get_text("brokerClusterName")
        self.listen_port = self.get_int("listenPort")
        self.vip_port = self.listen_port - 2 if self.listen_port > 2 and self.get_bool("vipChannelEnable") else 0
        advertised = self.get_text("brokerIP1").replace("localhost", "127.0.0.1")
        reachable = advertised and not IPv4Address(advertised).is_loopback
        bound = self.values.get("bindAddress", _WILDCARD if reachable else "127.0.0.1")
        self.listen_host = bound.replace("localhost", "127.0.0.1")
        self.advertised = advertised or self.listen_host
        if self.advertised == _WILDCARD:
            self.advertised = _default_address()
        acl_file = self.get_text("aclFile")
        self.acl_file = Path(acl_file) if acl_file else self.store_dir / "config" / "plain_acl.yml"
        self.namesrv_addr = parse_addresses(self.get_text("namesrvAddr"))
        self.plugins = [part.strip() for part in self.get_text("plugins").split(",") if part.strip()]
        listen = self.values.get("namesrvListen")
        if listen is None:
            self.namesrv_listen = None if self.namesrv_addr else (self.listen_host, 9876)
        else:
            self.namesrv_listen = parse_address(listen, self.listen_host) if listen else None

        http = self.get_text("httpListen")
        self.http_listen = parse_address(http) if http else None
        self.metrics_listen: tuple[str, int] | None = None
        if self.get_text("metricsExporterType") in ("PROM", "2"):
            host = self.get_text("metricsPromExporterHost").replace("localhost", "127.0.0.1") or self.listen_host
            self.metrics_listen = (host, self.get_int("metricsPromExporterPort"))

    def _find_warnings(self) -> None:
        """Collect the warnings for the log."""
        for key, text in WARNINGS.items():
            if self.values.get(key, "").lower() == "true":
                self.warnings.append(f"{key}=true: {text}")
        exporter = self.get_text("metricsExporterType")
        if exporter in ("OTLP_GRPC", "LOG", "1", "3"):
            self.warnings.append(f"metricsExporterType={exporter} exports nothing here: use PROM, or --http-listen")
        remote = [address for address in self.namesrv_addr if not _is_local(address)]
        if self.get_bool("aclEnable") and self.get_text("tls.server.mode") != "enforcing":
            self.warnings.append(
                "aclEnable=true without tls.server.mode=enforcing: anyone who sees the traffic can read it, and send "
                "recorded requests again, also as other requests, because a signature covers neither the request code "
                "nor the time; docs/security.md says how to switch on TLS"
            )
        if remote and IPv4Address(self.advertised).is_loopback:
            self.warnings.append(
                f"name servers at {';'.join(remote)} are told to send clients to {self.advertised}, which is this "
                "machine only: set brokerIP1 if other machines are to reach this broker"
            )

    def get_text(self, name: str) -> str:
        """Return the value of a used key, or its default."""
        return self.values.get(name, USED_KEYS[name].default)

    def get_int(self, name: str) -> int:
        """Return the value of a numeric used key, or its default; raises ValueError if it has neither."""
        return int(self.get_text(name))

    def get_bool(self, name: str) -> bool:
        """Return the value of a true-or-false used key, or its default."""
        return self.get_text(name).lower() == "true"

    def set_value(self, name: str, text: str) -> None:
        """Change one key at run time. The attributes made at start (addresses, names, plug-ins) stay as they are.

        Raises ConfigError, and changes nothing, if the value is not allowed.
        """
        key = USED_KEYS.get(name)
        self.values[name] = key.validate(text) if key else text

    def effective(self) -> dict[str, str]:
        """Every used key with its value or default, and whatever else was set."""
        return {**{name: key.default for name, key in USED_KEYS.items()}, **self.values}


def load_config(
    file: Path | None = None,
    options: Mapping[str, str] | None = None,
    settings: Mapping[str, str] | None = None,
) -> BrokerConfig:
    """Merge file, options and settings, the later ones taking precedence; all three under Apache's key names.

    ``namesrvListen`` and ``namesrvAddr`` exclude each other: if a stronger source sets one of them, the other one of a
    weaker source is dropped. Raises ConfigError for an invalid file or value.
    """
    values: dict[str, str] = read_config_file(file) if file else {}
    from_file = set(values)
    for source in (options or {}, settings or {}):
        for one, other in (("namesrvListen", "namesrvAddr"), ("namesrvAddr", "namesrvListen")):
            if source.get(one) and other not in source:
                values.pop(other, None)
        values.update(source)
        from_file -= source.keys()
    store_dir = values.get("storePathRootDir", "").strip()
    if not store_dir:
        raise ConfigError("storePathRootDir is not set: say where the store lies with --store DIR")
    if file is not None:
        _check_values_of(file, {name: text for name, text in values.items() if name in from_file})
    return BrokerConfig(store_dir, values, file=file)


def read_config_file(path: Path) -> dict[str, str]:
    """Read a file in Java's properties format. Raises ConfigError with the path."""
    data = _read(path)
    try:
        lines_of_keys(data)
        return parse_properties_file(data)
    except PropertiesError as error:
        raise ConfigError(f"{path}: {error}") from None


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None


def _check_values_of(path: Path, values: Mapping[str, str]) -> None:
    """Raise ConfigError with file and line for the first value of a file that cannot be used."""
    for name, text in values.items():
        try:
            _checked({name: text})
        except ConfigError as error:
            line = lines_of_keys(_read(path)).get(name, 0)
            raise ConfigError(f"{path}: line {line}: {error}") from None


def _checked(given: Mapping[str, str]) -> dict[str, str]:
    """Validate the used keys; an empty value counts as not set, unless the key allows one."""
    values: dict[str, str] = {}
    for name, text in given.items():
        key = USED_KEYS.get(name)
        if key is None:
            values[name] = text
        elif text.strip() or name in _MEANT_WHEN_EMPTY:
            values[name] = key.validate(text)
    return values


def _is_local(address: str) -> bool:
    host = address.rpartition(":")[0]
    try:
        return IPv4Address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _default_address(proc_net: Path = Path("/proc/net")) -> str:
    """Find the address of the interface that the default route uses, from Linux's own tables.

    Raises ConfigError if there is none: then the user must set it.
    """
    try:
        routes = [line.split() for line in (proc_net / "route").read_text().splitlines()[1:]]
        trie = (proc_net / "fib_trie").read_text().splitlines()
    except OSError:
        routes, trie = [], []
    local = [IPv4Address(above.split()[-1]) for above, line in pairwise(trie) if "host LOCAL" in line]
    default = next((route[0] for route in routes if len(route) > 7 and route[1] == route[7] == "00000000"), None)
    for route in routes:
        if route[0] == default and route[7] != "00000000":
            network = IPv4Network((_little_endian(route[1]), str(_little_endian(route[7]))))
            for address in local:
                if address in network:
                    return str(address)
    raise ConfigError(
        "brokerIP1 is not set, and no default route says which address clients are to dial: set brokerIP1"
    )


def _little_endian(hexadecimal: str) -> IPv4Address:
    return IPv4Address(struct.pack("<I", int(hexadecimal, 16)))
