"""The configuration keys that this broker uses: one table with kind, default, bounds, meaning, and what a change needs.

Names and defaults are Apache's (``BrokerConfig``, ``MessageStoreConfig``, ``NettyServerConfig`` of 5.5.0) unless
the key is marked as our own. The table is what `broker.config.broker_config` checks values against and what
``docs/configuration.md`` lists; a test keeps the two equal.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from ipaddress import IPv4Address

from broker.config.key import Key, Live

__all__ = ["LIVE_KEYS", "OWN_KEYS", "USED_KEYS", "parse_address", "parse_addresses"]


def parse_address(text: str, default_host: str = "127.0.0.1") -> tuple[str, int]:
    """Read ``HOST:PORT``, ``:PORT`` or ``PORT``; HOST is an IPv4 address or ``localhost``. Raises ValueError.

    >>> parse_address("0.0.0.0:10911"), parse_address("9876"), parse_address("localhost:1")
    (('0.0.0.0', 10911), ('127.0.0.1', 9876), ('127.0.0.1', 1))
    """
    host, _, port = text.strip().rpartition(":")
    try:
        number = int(port)
    except ValueError:
        raise ValueError(f"expected HOST:PORT, found {text!r}") from None
    if not 0 <= number <= 65535:
        raise ValueError(f"a port is between 0 and 65535, found {number}")
    return _host(host) if host else default_host, number


def parse_addresses(text: str) -> list[str]:
    """Split a list of ``HOST:PORT`` at ``;`` or ``,``; host names are allowed. Raises ValueError.

    >>> parse_addresses("192.0.2.1:9876; names.example:9876")
    ['192.0.2.1:9876', 'names.example:9876']
    """
    addresses = [part.strip() for part in re.split("[;,]", text) if part.strip()]
    for address in addresses:
        host, _, port = address.rpartition(":")
        if not host or not port.isascii() or not port.isdigit() or not 1 <= int(port) <= 65535:
            raise ValueError(f"expected HOST:PORT;HOST:PORT, found {address!r}")
    return addresses


def _host(text: str) -> str:
    if text == "localhost":
        return "127.0.0.1"
    try:
        return str(IPv4Address(text))
    except ValueError:
        raise ValueError(f"expected an IPv4 address, found {text!r}") from None


def _integer(low: int, high: int) -> Callable[[str], None]:
    def check(text: str) -> None:
        if not re.fullmatch(r"[+-]?[0-9]+", text) or not low <= int(text) <= high:
            raise ValueError(f"expected a whole number from {low} to {high}")

    return check


def _flag(text: str) -> None:
    if text.lower() not in ("true", "false"):
        raise ValueError("expected true or false")


def _one_of(*allowed: str) -> Callable[[str], None]:
    def check(text: str) -> None:
        if text not in allowed:
            raise ValueError(f"expected {' or '.join(allowed)}")

    return check


def _name(text: str) -> None:
    if not re.fullmatch(r"[A-Za-z0-9_.%|-]{1,127}", text):
        raise ValueError("expected 1 to 127 letters, digits, or - _ . % |")


def _text(text: str) -> None:  # anything goes
    del text


def _path(text: str) -> None:
    if not text or "\0" in text:
        raise ValueError("expected a path")


def _one_path(text: str) -> None:
    _path(text)
    if "," in text:
        raise ValueError("expected one directory: a CommitLog over several is not supported")


def _hours(text: str) -> None:
    parts = text.split(";")
    if not all(re.fullmatch("[0-9]{1,2}", part) and int(part) < 24 for part in parts):
        raise ValueError("expected hours of the day, such as 04 or 02;04;16")


def _levels(text: str) -> None:
    if not all(re.fullmatch("[0-9]+[smhd]", part) for part in text.split(" ")):
        raise ValueError("expected delays between single blanks, each a number with s, m, h or d, such as 1s 5s 10m 2h")


def _address(text: str) -> None:
    if text:
        parse_address(text)


def _addresses(text: str) -> None:
    parse_addresses(text)


def _ipv4(text: str) -> None:
    _host(text)


def _optional_ipv4(text: str) -> None:
    if text:
        _host(text)


def _master(text: str) -> None:
    if text == "SLAVE":
        raise ValueError("this broker stands alone: expected ASYNC_MASTER or SYNC_MASTER")
    _one_of("ASYNC_MASTER", "SYNC_MASTER")(text)


def _master_id(text: str) -> None:
    if text != "0":
        raise ValueError("this broker stands alone: expected 0, the id of a master")


def _no_dledger(text: str) -> None:
    _flag(text)
    if text.lower() == "true":
        raise ValueError("a DLedger log has a format of its own that is not read here: expected false")


def _plugins(text: str) -> None:
    for part in filter(None, (part.strip() for part in text.split(","))):
        if not re.fullmatch(r"[\w-]+|[\w.]+:\w+", part):
            raise ValueError(f"expected names or package.module:Class between commas, found {part!r}")


_PORT = _integer(0, 65535)
_COUNT = _integer(1, 10_000_000)
_MS = _integer(1, 2**31 - 1)
_PERCENT = _integer(1, 100)
_MIB = 1 << 20

_BROKER = (
    Key("brokerClusterName", "DefaultCluster", "Cluster that the routes name.", _name),
    Key("brokerName", "broker-a", "Name of this broker in the routes (Apache: the host's name).", _name),
    Key("brokerId", "0", "Must be 0: there are no slaves.", _master_id),
    Key("brokerRole", "ASYNC_MASTER", "ASYNC_MASTER or SYNC_MASTER, which are the same here.", _master),
    Key("brokerPermission", "6", "4 readable, 2 writable, 6 both.", _one_of("2", "4", "6"), Live.READ),
    Key("brokerIP1", "", "IPv4 address that clients are told to dial. Empty: the listening address.", _optional_ipv4),
    Key("bindAddress", "127.0.0.1", "IPv4 address to listen on. 0.0.0.0 when only brokerIP1 is set.", _ipv4),
    Key("listenPort", "10911", "Port; the VIP port is this minus 2. 0: any free port, without a VIP port.", _PORT),
    Key("serverSocketBacklog", "1024", "Connections that may wait to be accepted.", _integer(1, 65535)),
    Key("serverChannelMaxIdleTimeSeconds", "120", "Seconds until a silent connection is closed.", _integer(1, 86400)),
    Key("channelExpiredTimeout", "120000", "Milliseconds without heartbeat after which a client is gone.", _MS),
    Key("namesrvAddr", "", "External name servers to register with. Set: no embedded one is started.", _addresses),
    Key("registerNameServerPeriod", "30000", "Milliseconds between registrations, 10 s to 60 s.", _MS),
    Key("registerBrokerTimeoutMills", "24000", "Milliseconds that one registration may take.", _MS),
    Key("aclEnable", "false", "Serve signed requests only, by the rules of `aclFile`.", _flag),
    Key("autoCreateTopicEnable", "true", "The first send to an unknown topic creates it.", _flag, Live.TOPICS),
    Key("defaultTopicQueueNums", "8", "Most queues of a topic created by a send.", _integer(1, 65536), Live.TOPICS),
    Key(
        "autoCreateSubscriptionGroup", "true", "The first heartbeat of an unknown group creates it.", _flag, Live.GROUPS
    ),
    Key("flushConsumerOffsetInterval", "5000", "Milliseconds between writes of consumerOffset.json.", _MS),
    Key("longPollingEnable", "true", "Hold pulls that find nothing until there is something.", _flag, Live.READ),
    Key("enablePropertyFilter", "false", "Serve SQL92 subscriptions ([filtering.md](filtering.md)).", _flag, Live.READ),
    Key("recallMessageEnable", "false", "Give out handles to recall timed messages, and serve recalls.", _flag),
    Key("notifyConsumerIdsChangedEnable", "true", "Tell a group's members when one comes or goes.", _flag, Live.READ),
    Key(
        "sendThreadPoolQueueCapacity",
        "10000",
        "Sends that may wait for the disk (SYNC_FLUSH); more get SYSTEM_BUSY.",
        _integer(1, 10_000_000),
    ),
    Key(
        "waitTimeMillsInSendQueue",
        "200",
        "Milliseconds that a send may wait to be read; after that it gets SYSTEM_BUSY.",
        _MS,
    ),
    Key(
        "pullThreadPoolQueueCapacity",
        "100000",
        "Pulls that may wait for messages or the disk; more get SYSTEM_BUSY.",
        _integer(1, 10_000_000),
    ),
    Key("popInflightMessageThreshold", "10000", "Most messages of a queue that a group holds.", _COUNT, Live.READ),
    Key(
        "replyThreadPoolQueueCapacity",
        "10000",
        "Requests that may wait for a client's answer or the disk (replies of request-reply, send-backs, "
        "administrators' questions to clients); more get SYSTEM_BUSY.",
        _integer(1, 10_000_000),
    ),
    Key("rejectTransactionMessage", "false", "Refuse transactions' half messages.", _flag, Live.READ),
    Key(
        "transactionTimeOut",
        "6000",
        "Age in milliseconds at which an undecided transaction is checked.",
        _MS,
        Live.READ,
    ),
    Key("transactionCheckMax", "15", "Checks until a transaction is given up.", _integer(1, 2**31 - 1), Live.READ),
    Key("transactionCheckInterval", "30000", "Milliseconds between two rounds of checks.", _MS, Live.READ),
    Key("storeReplyMessageEnable", "true", "Store replies of request-reply in their topic as well.", _flag, Live.READ),
    Key("regionId", "DefaultRegion", "MSG_REGION of replies.", _name),
    Key("traceOn", "true", "TRACE_ON of replies: clients may send traces.", _flag),
    Key("traceTopicEnable", "false", "Create the trace topic at start.", _flag),
    Key("msgTraceTopicName", "RMQ_SYS_TRACE_TOPIC", "Name of the trace topic.", _name),
)

_TLS = (
    Key(
        "tls.server.mode",
        "permissive",
        "With a certificate: TLS and plain connections, TLS only, or plain only.",
        _one_of("permissive", "enforcing", "disabled"),
    ),
    Key("tls.server.certPath", "", "PEM file with the certificate, or its chain. Empty: no TLS.", _text),
    Key("tls.server.keyPath", "", "PEM file with its private key. Empty: in the same file.", _text),
    Key("tls.server.keyPassword", "", "Password of the key, if it has one.", _text),
    Key(
        "tls.server.need.client.auth",
        "none",
        "Whether clients must show a certificate.",
        _one_of("none", "optional", "require"),
    ),
    Key("tls.server.authClient", "false", "The same as need.client.auth=require.", _flag),
    Key("tls.server.trustCertPath", "", "PEM file with the authorities that client certificates come from.", _text),
)

_STORE = (
    Key("storePathRootDir", "", "Store directory (option --store).", _path),
    Key("storePathCommitLog", "", "CommitLog directory. Empty: commitlog in the store directory.", _one_path),
    Key("flushDiskType", "ASYNC_FLUSH", "SYNC_FLUSH: reply after a sync.", _one_of("ASYNC_FLUSH", "SYNC_FLUSH")),
    Key("flushIntervalCommitLog", "500", "ASYNC_FLUSH: milliseconds between syncs.", _integer(1, 60_000)),
    Key("mappedFileSizeCommitLog", str(1 << 30), "Bytes of a CommitLog segment.", _integer(4096, 2**31 - 1)),
    Key("mappedFileSizeConsumeQueue", "6000000", "Bytes of a ConsumeQueue file.", _integer(20, 2**31 - 1)),
    Key("maxMessageSize", str(4 * _MIB), "Most bytes of a message.", _integer(1, 15 * _MIB)),
    Key(
        "messageDelayLevel",
        "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h",
        "Delays of the levels 1, 2, …",
        _levels,
    ),
    Key("fileReservedTime", "72", "Hours that a CommitLog segment is kept.", _integer(0, 1_000_000), Live.RETENTION),
    Key("deleteWhen", "04", "Hours of the day in which old segments are deleted.", _hours, Live.RETENTION),
    Key(
        "diskMaxUsedSpaceRatio",
        "75",
        "Used percent of the disk above which old segments are deleted at any hour.",
        _PERCENT,
        Live.RETENTION,
    ),
    Key(
        "diskSpaceCleanForciblyRatio",
        "85",
        "Used percent above which segments are deleted before their time; a warning.",
        _PERCENT,
        Live.RETENTION,
    ),
    Key(
        "diskSpaceWarningLevelRatio",
        "90",
        "Used percent above which sends are refused, timed ones too.",
        _PERCENT,
        Live.RETENTION,
    ),
    Key("deleteFileBatchMax", "10", "Most segments deleted by one pass.", _integer(1, 1_000_000), Live.RETENTION),
    Key("cleanFileForciblyEnable", "true", "Whether segments may be deleted before their time.", _flag, Live.RETENTION),
    Key(
        "defaultQueryMaxNum", "32", "Most messages returned by a query by unique key.", _integer(1, 10_000), Live.QUERY
    ),
    Key("maxTransferBytesOnMessageInMemory", "262144", "Most bytes of a pull.", _integer(1, 15 * _MIB), Live.PULL),
    Key("maxTransferCountOnMessageInMemory", "32", "Most messages of a pull.", _integer(1, 100_000), Live.PULL),
    Key(
        "maxTransferBytesOnMessageInDisk",
        "65536",
        "Most bytes of a pull from files that are not in memory.",
        _integer(1, 15 * _MIB),
        Live.PULL,
    ),
    Key(
        "maxTransferCountOnMessageInDisk",
        "8",
        "Most messages of a pull from files that are not in memory.",
        _integer(1, 100_000),
        Live.PULL,
    ),
    Key("timerPrecisionMs", "1000", "Apache's own timer: read only to find its pending messages.", _MS),
    Key("enableDLegerCommitLog", "false", "Must be false.", _no_dledger),
    Key(
        "timerMaxDelaySec",
        "",
        "Longest delay in seconds. Unset (not 3 days, as Apache has it): no limit.",
        _integer(1, 2**40),
    ),
)

OWN_KEYS: dict[str, Key] = {
    key.name: key
    for key in (
        Key("plugins", "delay", "Plug-ins: names or package.module:Class between commas; empty: none.", _plugins),
        Key("namesrvListen", "127.0.0.1:9876", "Where the embedded name server listens; empty: nowhere.", _address),
        Key("vipChannelEnable", "true", "Listen on the VIP port as well.", _flag),
        Key("autoCreateTopicOnRoute", "false", "A route lookup creates an unknown topic (for ali-ons).", _flag),
        Key("timewheelSegmentBytes", str(64 * _MIB), "Bytes of a journal segment.", _integer(256, 2**32 - 1)),
        Key("timewheelNearMs", "30000", "Messages due within this many milliseconds are not copied into runs.", _MS),
        Key("timewheelNearBytes", str(256 * _MIB), "Most bytes of closed journal segments.", _integer(0, 2**50)),
        Key("timewheelNearRecords", "500000", "Most records in closed journal segments.", _integer(1, 2**31 - 1)),
        Key("timewheelRunsMax", "256", "Runs above which the smallest are merged.", _integer(2, 100_000)),
        Key("timewheelMergeWidth", "32", "Runs merged at once.", _integer(2, 10_000)),
        Key("timewheelPageBytes", "8192", "Bytes of a page of a run's columns.", _integer(60, 2**20)),
        Key(
            "timewheelPunchBytes",
            str(4 * _MIB),
            "Least delivered bytes of a run for which a hole is punched.",
            _integer(1, 2**50),
        ),
        Key(
            "timewheelCacheBytes", str(8 * _MIB), "Bytes of pages of runs that are kept in memory.", _integer(0, 2**40)
        ),
        Key("timewheelReserveBytes", str(256 * _MIB), "Disk space that sends may not take.", _integer(0, 2**50)),
        Key("timewheelArmedRecords", "8192", "Most messages in the wheel.", _integer(1, 2**31 - 1)),
        Key(
            "timewheelHotRecords",
            "1024",
            "If more messages than this are due at once, recovery delivers most of them.",
            _integer(1, 2**31 - 1),
        ),
        Key("timewheelBatchRecords", "512", "Most messages of one delivery.", _integer(1, 65_536)),
        Key("aclFile", "", "The access rules. Empty: config/plain_acl.yml in the store directory.", _text),
        Key(
            "lockMaxLiveTime",
            "60000",
            "Milliseconds without renewal after which an ordered queue's lock expires (Apache: a Java property).",
            _MS,
        ),
        Key(
            "connectionBytesMax",
            str(256 * _MIB),
            "Most bytes of unfinished requests, waiting requests and replies not taken, of all "
            "connections together; beyond it the connections with the most are closed.",
            _integer(_MIB, 2**50),
        ),
        Key(
            "maxAutoCreateTopicNum",
            "20000",
            "Number of topics, of all kinds, from which on sends create no more.",
            _integer(0, 10_000_000),
            Live.BOUNDS,
        ),
        Key(
            "maxAutoCreateSubscriptionGroupNum",
            "10000",
            "Number of groups from which on unknown ones are not created.",
            _integer(0, 10_000_000),
            Live.BOUNDS,
        ),
        Key(
            "maxConsumerOffsetNum",
            "500000",
            "Most consumer offsets, of all groups in all queues.",
            _integer(1, 100_000_000),
            Live.BOUNDS,
        ),
        Key(
            "maxUndecidedTransactionNum",
            "500000",
            "Most undecided half messages; more get SYSTEM_BUSY.",
            _integer(0, 100_000_000),
            Live.READ,
        ),
        Key("logDir", "", "Directory of the log. Empty: logs in the store directory.", _text),
        Key("logLevel", "INFO", "Lowest level that is logged.", _one_of("DEBUG", "INFO", "WARNING", "ERROR"), Live.LOG),
        Key("logFileBytes", str(64 * _MIB), "Bytes of a log file; then a new one is started.", _integer(4096, 2**40)),
        Key("logFileCount", "10", "Old log files that are kept.", _integer(1, 10_000)),
    )
}
"""Keys that Apache's broker does not know."""

USED_KEYS: dict[str, Key] = {key.name: key for key in (*_BROKER, *_TLS, *_STORE, *OWN_KEYS.values())}
"""All keys that have an effect here."""

LIVE_KEYS = frozenset(name for name, key in USED_KEYS.items() if key.live is not None)
"""The keys that can be changed while the broker runs."""
