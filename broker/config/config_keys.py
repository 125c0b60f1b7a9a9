"""The configuration keys that this broker uses: default, meaning, allowed values, and how a change takes effect.

Names and defaults are Apache's (``BrokerConfig``, ``MessageStoreConfig``, ``NettyServerConfig`` of 5.5.0), except for
the keys of `broker.config.own_keys`. `broker.config.broker_config` checks values against this table.
``docs/configuration.md`` lists the same keys and texts; a test compares them.
"""

from __future__ import annotations

from broker.config.key import Key, Live
from broker.config.own_keys import OWN_KEYS
from broker.config.values import (
    a_master,
    a_master_id,
    a_name,
    a_path,
    a_whole_number,
    addresses,
    any_text,
    hours,
    ipv4,
    labels,
    levels,
    no_dledger,
    one_of,
    one_path,
    optional_ipv4,
    parse_address,
    parse_addresses,
    true_or_false,
)

__all__ = ["LIVE_KEYS", "USED_KEYS", "parse_address", "parse_addresses"]


_PORT = a_whole_number(0, 65535)
_COUNT = a_whole_number(1, 10_000_000)
_MS = a_whole_number(1, 2**31 - 1)
_PERCENT = a_whole_number(1, 100)
_MIB = 1 << 20

_BROKER = (
    Key("brokerClusterName", "DefaultCluster", "Cluster name in the routes.", a_name),
    Key("brokerName", "broker-a", "Broker name in the routes (Apache: the host's name).", a_name),
    Key("brokerId", "0", "Must be 0: there are no slaves.", a_master_id),
    Key("brokerRole", "ASYNC_MASTER", "ASYNC_MASTER or SYNC_MASTER. Both mean the same here.", a_master),
    Key("brokerPermission", "6", "4: readable; 2: writable; 6: both.", one_of("2", "4", "6"), Live.READ),
    Key("brokerIP1", "", "IPv4 address that clients are told to dial. Empty: the listening address.", optional_ipv4),
    Key(
        "bindAddress",
        "127.0.0.1",
        "IPv4 address to listen on. If only brokerIP1 is set (not to a loopback address): 0.0.0.0.",
        ipv4,
    ),
    Key(
        "listenPort",
        "10911",
        "Port to listen on. The VIP port is this minus 2. 0: any free port, and no VIP port.",
        _PORT,
    ),
    Key("serverSocketBacklog", "1024", "Connections that may wait to be accepted.", a_whole_number(1, 65535)),
    Key(
        "serverChannelMaxIdleTimeSeconds",
        "120",
        "Seconds after which an idle connection is closed.",
        a_whole_number(1, 86400),
    ),
    Key(
        "channelExpiredTimeout", "120000", "Milliseconds without a heartbeat after which a client counts as gone.", _MS
    ),
    Key(
        "namesrvAddr",
        "",
        "External name servers to register with. With them, the embedded one starts only if `namesrvListen` is set.",
        addresses,
    ),
    Key(
        "registerNameServerPeriod",
        "30000",
        "Milliseconds between registrations (not limited to 10 to 60 s, as on Apache's broker).",
        _MS,
    ),
    Key("registerBrokerTimeoutMills", "24000", "Milliseconds that one registration may take.", _MS),
    Key("aclEnable", "false", "Check signatures and rights by the rules in `aclFile`.", true_or_false),
    Key("autoCreateTopicEnable", "true", "The first send to an unknown topic creates it.", true_or_false, Live.TOPICS),
    Key(
        "defaultTopicQueueNums", "8", "Most queues of a topic created by a send.", a_whole_number(1, 65536), Live.TOPICS
    ),
    Key(
        "autoCreateSubscriptionGroup",
        "true",
        "The first heartbeat of an unknown group creates it.",
        true_or_false,
        Live.GROUPS,
    ),
    Key("flushConsumerOffsetInterval", "5000", "Milliseconds between writes of consumerOffset.json.", _MS),
    Key("longPollingEnable", "true", "Hold a pull that finds no message until one arrives.", true_or_false, Live.READ),
    Key(
        "enablePropertyFilter",
        "false",
        "Serve SQL92 subscriptions ([filtering.md](filtering.md)).",
        true_or_false,
        Live.READ,
    ),
    Key(
        "recallMessageEnable", "false", "Give out recall handles for timed messages, and serve recalls.", true_or_false
    ),
    Key(
        "notifyConsumerIdsChangedEnable",
        "true",
        "Tell the members of a consumer group when a member joins or leaves.",
        true_or_false,
        Live.READ,
    ),
    Key(
        "sendThreadPoolQueueCapacity",
        "10000",
        "Most sends that wait for their sync (SYNC_FLUSH). Further ones get SYSTEM_BUSY.",
        a_whole_number(1, 10_000_000),
    ),
    Key(
        "waitTimeMillsInSendQueue",
        "200",
        "Milliseconds that a send may wait until the broker reads it. After that it gets SYSTEM_BUSY.",
        _MS,
    ),
    Key(
        "pullThreadPoolQueueCapacity",
        "100000",
        "Most pulls that wait for messages or for the disk. Further ones get SYSTEM_BUSY.",
        a_whole_number(1, 10_000_000),
    ),
    Key(
        "defaultMessageRequestMode",
        "PULL",
        "PULL or POP, for groups without a mode of their own (`mqadmin setConsumeMode`). Only members "
        "that ask the broker for their queues are told.",
        one_of("PULL", "POP"),
        Live.READ,
    ),
    Key(
        "defaultPopShareQueueNum",
        "-1",
        "In mode POP: the number of other members whose queues a member pops as well. 0 or less: all queues.",
        a_whole_number(-(2**31), 2**31 - 1),
        Live.READ,
    ),
    Key(
        "serverLoadBalancerEnable",
        "true",
        "Give each member that asks the broker its share of a topic's queues. `false`: give it all queues.",
        true_or_false,
        Live.READ,
    ),
    Key(
        "loadBalancePollNameServerInterval",
        "30000",
        "Milliseconds for which a topic's queues, as an external name server listed them, are cached for this.",
        _MS,
    ),
    Key(
        "popInflightMessageThreshold",
        "10000",
        "Most messages of a queue in flight (popped, not acknowledged) for one group.",
        _COUNT,
        Live.READ,
    ),
    Key(
        "replyThreadPoolQueueCapacity",
        "10000",
        "Most requests that wait for a client's answer or for the disk (request-reply, send-backs, "
        "administrators' questions to clients). Further ones get SYSTEM_BUSY.",
        a_whole_number(1, 10_000_000),
    ),
    Key("rejectTransactionMessage", "false", "Refuse half messages.", true_or_false, Live.READ),
    Key(
        "transactionTimeOut",
        "6000",
        "Age in milliseconds from which on an undecided half message is checked.",
        _MS,
        Live.READ,
    ),
    Key(
        "transactionCheckMax",
        "15",
        "Checks after which a half message is given up.",
        a_whole_number(1, 2**31 - 1),
        Live.READ,
    ),
    Key("transactionCheckInterval", "30000", "Milliseconds between two rounds of checks.", _MS, Live.READ),
    Key(
        "storeReplyMessageEnable",
        "true",
        "Store the replies of request-reply in their topic, too.",
        true_or_false,
        Live.READ,
    ),
    Key("regionId", "DefaultRegion", "MSG_REGION in replies to sends.", a_name),
    Key("traceOn", "true", "TRACE_ON in replies to sends: clients may send traces.", true_or_false),
    Key("traceTopicEnable", "false", "Create the trace topic (`msgTraceTopicName`) at start.", true_or_false),
    Key(
        "metricsExporterType",
        "DISABLE",
        "PROM: metrics for Prometheus ([metrics.md](metrics.md)). OTLP_GRPC and LOG export nothing here.",
        one_of("DISABLE", "PROM", "OTLP_GRPC", "LOG", "0", "1", "2", "3"),
    ),
    Key(
        "metricsPromExporterHost",
        "",
        "IPv4 address of the metrics port. Empty: the address that the broker listens on.",
        optional_ipv4,
    ),
    Key("metricsPromExporterPort", "5557", "Port of the metrics.", _PORT),
    Key("metricsLabel", "", "Labels for every series: name:value,name:value.", labels),
    Key("msgTraceTopicName", "RMQ_SYS_TRACE_TOPIC", "Name of the trace topic.", a_name),
)

_TLS = (
    Key(
        "tls.server.mode",
        "permissive",
        "With a certificate: permissive serves TLS and plain connections, enforcing TLS only, disabled plain only.",
        one_of("permissive", "enforcing", "disabled"),
    ),
    Key("tls.server.certPath", "", "PEM file with the certificate, or its chain. Empty: no TLS.", any_text),
    Key("tls.server.keyPath", "", "PEM file with its private key. Empty: in the same file.", any_text),
    Key("tls.server.keyPassword", "", "Password of the key, if it has one.", any_text),
    Key(
        "tls.server.need.client.auth",
        "none",
        "Whether clients must show a certificate.",
        one_of("none", "optional", "require"),
    ),
    Key("tls.server.authClient", "false", "true: the same as tls.server.need.client.auth=require.", true_or_false),
    Key(
        "tls.server.trustCertPath", "", "PEM file with the authorities that signed the clients' certificates.", any_text
    ),
)

_STORE = (
    Key("storePathRootDir", "", "Store directory (option --store).", a_path),
    Key("storePathCommitLog", "", "CommitLog directory. Empty: commitlog in the store directory.", one_path),
    Key(
        "flushDiskType",
        "ASYNC_FLUSH",
        "SYNC_FLUSH: a send is answered after the sync. ASYNC_FLUSH: after the write.",
        one_of("ASYNC_FLUSH", "SYNC_FLUSH"),
    ),
    Key("flushIntervalCommitLog", "500", "Milliseconds between two syncs (ASYNC_FLUSH).", a_whole_number(1, 60_000)),
    Key(
        "mappedFileSizeCommitLog",
        str(1 << 30),
        "Bytes of a CommitLog segment. The record of a sent message must be at least 648 bytes smaller.",
        a_whole_number(4096, 2**31 - 1),
    ),
    Key("mappedFileSizeConsumeQueue", "6000000", "Bytes of a ConsumeQueue file.", a_whole_number(20, 2**31 - 1)),
    Key(
        "maxMessageSize",
        str(4 * _MIB),
        "Most bytes of a message's body, or of a whole batch.",
        a_whole_number(1, 15 * _MIB),
    ),
    Key(
        "messageDelayLevel",
        "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h",
        "Delays of the levels 1, 2, 3, …",
        levels,
    ),
    Key(
        "fileReservedTime",
        "72",
        "Hours after its last write at which a CommitLog segment expires.",
        a_whole_number(0, 1_000_000),
        Live.RETENTION,
    ),
    Key("deleteWhen", "04", "Hours of the day in which expired segments are deleted.", hours, Live.RETENTION),
    Key(
        "diskMaxUsedSpaceRatio",
        "75",
        "Used percent of the disk above which expired segments are deleted at any hour.",
        _PERCENT,
        Live.RETENTION,
    ),
    Key(
        "diskSpaceCleanForciblyRatio",
        "85",
        "Used percent above which segments are deleted before they expire. The log warns.",
        _PERCENT,
        Live.RETENTION,
    ),
    Key(
        "diskSpaceWarningLevelRatio",
        "90",
        "Used percent above which all sends are refused, timed ones too.",
        _PERCENT,
        Live.RETENTION,
    ),
    Key("deleteFileBatchMax", "10", "Most segments deleted in one pass.", a_whole_number(1, 1_000_000), Live.RETENTION),
    Key(
        "cleanFileForciblyEnable",
        "true",
        "Delete segments before they expire, if the disk is too full.",
        true_or_false,
        Live.RETENTION,
    ),
    Key(
        "defaultQueryMaxNum",
        "32",
        "Most messages returned by a query by unique key.",
        a_whole_number(1, 10_000),
        Live.QUERY,
    ),
    Key(
        "maxTransferBytesOnMessageInMemory",
        "262144",
        "Most bytes of messages in the reply to a pull.",
        a_whole_number(1, 15 * _MIB),
        Live.PULL,
    ),
    Key(
        "maxTransferCountOnMessageInMemory",
        "32",
        "Most messages in the reply to a pull.",
        a_whole_number(1, 100_000),
        Live.PULL,
    ),
    Key(
        "maxTransferBytesOnMessageInDisk",
        "65536",
        "The same for messages that are not in memory: bytes.",
        a_whole_number(1, 15 * _MIB),
        Live.PULL,
    ),
    Key(
        "maxTransferCountOnMessageInDisk",
        "8",
        "The same for messages that are not in memory: number.",
        a_whole_number(1, 100_000),
        Live.PULL,
    ),
    Key(
        "timerPrecisionMs",
        "1000",
        "Slot length of Apache's own timer. Used only to find messages that are pending there.",
        _MS,
    ),
    Key("enableDLegerCommitLog", "false", "Must be false: a DLedger log cannot be read.", no_dledger),
    Key(
        "timerMaxDelaySec",
        "",
        "Longest delay in seconds. Not set: no limit (Apache: 3 days).",
        a_whole_number(1, 2**40),
    ),
)

USED_KEYS: dict[str, Key] = {key.name: key for key in (*_BROKER, *_TLS, *_STORE, *OWN_KEYS.values())}
"""All keys that have an effect here."""

LIVE_KEYS = frozenset(name for name, key in USED_KEYS.items() if key.live is not None)
"""The keys that can be changed while the broker runs."""
