"""The broker's settings: one frozen struct, each field with its type, default, bounds and documentation.

A field is Kafka's key with dots written as underscores, so `BROKER_KEYS` (key → `Key`) is derived from the
struct and cannot disagree with it. Defaults are Kafka 4.3's with these exceptions: `listeners` is the
loopback address, which needs no authentication, `log.dirs` is `./data` instead of a directory below /tmp,
`node.id` is 1 instead of required, the two thread counts fit the machine (`workers`), and
`group.coordinator.rebalance.protocols` is without streams.
"""

from functools import partial
from typing import Annotated

import msgspec

from mpbroker.config import limits
from mpbroker.config.altered import Altered
from mpbroker.config.integers import INT_MAX, LONG_MAX
from mpbroker.config.keys import ConfigType, Key, Secret, table_of
from mpbroker.config.listeners import DEFAULT_PROTOCOL_MAP, Listener, parse_http_listener, parse_listeners
from mpbroker.config.otlp import DEFAULT_INTERVAL_MS, problem_of, without_secrets
from mpbroker.config.remote import RemoteSettings
from mpbroker.config.security import SecuritySettings
from mpbroker.config.workers import MAX_HANDLERS, MAX_LOG_WORKERS, MAX_PROCESSORS, default_workers

BOOLEAN, DOUBLE, INT, LIST = ConfigType.BOOLEAN, ConfigType.DOUBLE, ConfigType.INT, ConfigType.LIST
LONG, PASSWORD, STRING = ConfigType.LONG, ConfigType.PASSWORD, ConfigType.STRING

HOUR_MS = 3_600_000
MINUTE_MS = 60_000
DEFAULT_LISTENERS = "PLAINTEXT://127.0.0.1:9092"
DEFAULT_LOG_DIR = "./data"
CODECS = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
CLEANUP_POLICIES = ("compact", "delete")
TIMESTAMP_TYPES = ("CreateTime", "LogAppendTime")
STANDARD_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
FLUSH_POLICIES = ("group", "os")
AUDIT_LEVELS = ("INFO", "WARN", "OFF")
AUDIT_FORMATS = ("text", "json")
# A request lies in one block of at most 1 GiB, between its size and room for its response.
LARGEST_REQUEST_BYTES = (1 << 30) - (1 << 16) - 128
# A log directory with less room than this is full, although a small record may fit into its last bytes.
ROOM_BYTES = 1 << 20

_NO_PREALLOCATION = "segments grow as they are written"
_NO_LOG_START_TIMER = "log start offsets are written whenever they move"
_NO_ELECTION = "this broker is a single node, whose replica never lags"


def gzip_level(level: int) -> str:
    """Return the problem with a gzip level by Kafka's rules, or "". A level of -1 means zlib's default."""
    return "" if level == -1 or 1 <= level <= 9 else "Value must be between 1 and 9, or equal to -1"


def nonzero(time: int) -> str:
    """Return the problem with a retention time, or "". Zero is refused; a negative time means no limit."""
    return "" if time else "Value must be unlimited (-1) or at least 1"


def fit_the_memory(most: int, count: int) -> str:
    """Return the problem, or "", with `count` workers if shared memory has room for `most` workers."""
    if count <= most:
        return ""
    return (
        f"Value must be no more than {most}: here it is a number of processes, none of which waits for a "
        "client, so that one per CPU is enough; leave the key out for what fits this machine"
    )


def _is_authorizer(name: str) -> str:
    """Return the problem with an authorizer's name, or "". Only the built-in authorizer is accepted."""
    if name in ("", STANDARD_AUTHORIZER):
        return ""
    return f"Java plug-ins cannot be loaded; the only authorizer is {STANDARD_AUTHORIZER}"


def _are_principals(text: str) -> str:
    """Return the problem with a list of super users, or "". Each entry must be `Type:name`."""
    wrong = [one.strip() for one in text.split(";") if one.strip() and ":" not in one]
    if not wrong:
        return ""
    return f"{wrong[0]} is not of the form Type:name, as in User:admin; semicolons separate principals"


def _is_host_and_port(text: str) -> str:
    """Return the problem with an address to listen on, or ""."""
    try:
        parse_http_listener(text)
    except ValueError as error:
        return str(error)
    return ""


def _is_endpoint(text: str) -> str:
    """Return the problem with the URL of an OTLP endpoint, or ""."""
    return problem_of(text) if text else ""


def _default_listeners() -> tuple[Listener, ...]:
    return parse_listeners(DEFAULT_LISTENERS, DEFAULT_PROTOCOL_MAP)


class BrokerConfig(RemoteSettings, frozen=True, kw_only=True):
    """All settings that a process of the broker may need."""

    node_id: Annotated[
        int, Key(INT, "Number of this broker in its cluster.", at_least=0, begins="Identity and addresses")
    ] = 1
    broker_rack: Annotated[
        str | None,
        Key(STRING, "Rack of this broker: clients with this client.rack read from a replica there."),
    ] = None
    listeners: Annotated[
        tuple[Listener, ...],
        Key(
            LIST,
            "Addresses to listen on, as NAME://host:port; an empty host means all addresses.",
            default=DEFAULT_LISTENERS,
        ),
    ] = msgspec.field(default_factory=_default_listeners)
    advertised_listeners: Annotated[
        tuple[Listener, ...] | None,
        Key(LIST, "Addresses that clients are to connect to; the listeners if not set."),
    ] = None
    listener_security_protocol_map: Annotated[
        dict[str, str],
        Key(
            STRING,
            "Security protocol of each listener name, as NAME:PROTOCOL.",
            default=",".join(f"{name}:{name}" for name in DEFAULT_PROTOCOL_MAP),
        ),
    ] = msgspec.field(default_factory=DEFAULT_PROTOCOL_MAP.copy)

    inter_broker_listener_name: Annotated[
        str | None,
        Key(
            STRING, "Listener of brokers and operators, which max.connections of the others cannot shut out."
        ),
    ] = None
    control_plane_listener_name: Annotated[
        str | None, Key(STRING, "Listener with an acceptor, processor and handler of its own.")
    ] = None
    http_listener: Annotated[
        str,
        Key(
            STRING,
            "Address, as host:port, that serves metrics and health over HTTP; empty: nothing does.",
            check=_is_host_and_port,
        ),
    ] = ""
    http_console_enable: Annotated[
        bool, Key(BOOLEAN, "Serve the web console at / of the HTTP address; false: metrics and health alone.")
    ] = True
    http_console_write: Annotated[
        bool,
        Key(
            BOOLEAN,
            "Allow changes on the console's page, with its token: topics, records, groups and their offsets, "
            "users, access control lists.",
        ),
    ] = False
    http_console_client_config: Annotated[
        str,
        Key(
            STRING,
            "File with the client settings with which the console asks the broker, as --command-config has "
            "them; empty: it asks without a login.",
        ),
    ] = ""
    http_console_schema_registry_config: Annotated[
        str,
        Key(
            STRING,
            "File with the settings of a schema registry, as consume --registry-config has them. The console "
            "shows values that name a schema there as JSON; empty: as bytes.",
        ),
    ] = ""
    http_hosts: Annotated[
        tuple[str, ...],
        Key(
            LIST,
            "Names under which the HTTP address is reached, besides those of the host and of the listeners, "
            "localhost and IP addresses.",
        ),
    ] = ()
    otlp_endpoint: Annotated[
        str,
        Key(
            STRING,
            "URL to which metrics are sent by OTLP over HTTP, without v1/metrics; empty: to none, unless "
            "OTEL_EXPORTER_OTLP_ENDPOINT is set.",
            check=_is_endpoint,
            shown=without_secrets,
        ),
    ] = ""
    otlp_export_interval_ms: Annotated[
        int, Key(INT, "How often metrics are sent by OTLP.", at_least=1000)
    ] = DEFAULT_INTERVAL_MS
    client_telemetry_enable: Annotated[
        bool,
        Key(
            BOOLEAN,
            "Take metrics that clients push (KIP-714) by the subscriptions of client metrics, and serve them "
            "with the broker's own, by http.listener or OTLP.",
        ),
    ] = False
    telemetry_max_bytes: Annotated[
        int,
        Key(
            INT,
            "Largest push of a client's metrics, as sent: mostly compressed.",
            at_least=1,
            at_most=2 << 20,
        ),
    ] = 1 << 20
    admin_listener_names: Annotated[
        tuple[str, ...], Key(LIST, "Listeners on which the broker can be administered; empty: all of them.")
    ] = ()

    num_partitions: Annotated[
        int, Key(INT, "Partitions of a topic created without a number.", at_least=1, begins="Topics")
    ] = 1
    auto_create_topics_enable: Annotated[
        bool, Key(BOOLEAN, "Create a topic when a client first asks for it.")
    ] = True
    max_auto_created_partitions_per_principal: Annotated[
        int,
        Key(
            INT,
            "Partitions of topics that one principal may have created by asking for them. Three quarters of "
            "the broker's partitions are for all such topics together.",
            at_least=0,
        ),
    ] = 1000
    delete_topic_enable: Annotated[bool, Key(BOOLEAN, "Allow topics to be deleted.")] = True
    default_replication_factor: Annotated[
        int, Key(INT, "Replicas of a topic created without a number.", at_least=1)
    ] = 1
    mpbroker_replication_factor_clamp: Annotated[
        bool,
        Key(BOOLEAN, "Create topics that ask for more than one replica with one, instead of refusing them."),
    ] = False
    min_insync_replicas: Annotated[
        int,
        Key(INT, "Replicas that must have a write before acks=all is answered: there is one.", at_least=1),
    ] = 1
    unclean_leader_election_enable: Annotated[
        bool,
        Key(
            BOOLEAN, "Let a lagging replica become leader; a single node never has one.", pending=_NO_ELECTION
        ),
    ] = False

    authorizer_class_name: Annotated[
        str,
        Key(
            STRING,
            f"{STANDARD_AUTHORIZER}: clients may do what access control lists allow; empty: everything.",
            check=_is_authorizer,
            begins="Permissions",
        ),
    ] = ""
    super_users: Annotated[
        str,
        Key(
            STRING,
            "Principals that may do everything, as User:name with semicolons between them.",
            check=_are_principals,
        ),
    ] = ""
    allow_everyone_if_no_acl_found: Annotated[
        bool, Key(BOOLEAN, "Whether a resource that no access control list is about is open to everybody.")
    ] = False
    delegation_token_secret_key: Annotated[
        Secret | None,
        Key(PASSWORD, "Secret that delegation tokens are made with; without it there are none."),
    ] = None
    delegation_token_max_lifetime_ms: Annotated[
        int, Key(LONG, "Longest life of a delegation token, however often it is renewed.", at_least=1)
    ] = 604_800_000
    delegation_token_expiry_time_ms: Annotated[
        int, Key(LONG, "Time until a delegation token must be renewed.", at_least=1)
    ] = 86_400_000
    delegation_token_expiry_check_interval_ms: Annotated[
        int, Key(LONG, "Time between two removals of expired delegation tokens.", at_least=1)
    ] = 3_600_000

    audit_log_level: Annotated[
        str,
        Key(
            STRING,
            "INFO: logins, administration and refusals of both; WARN: only refusals; OFF.",
            choices=AUDIT_LEVELS,
            begins="The audit log",
        ),
    ] = "INFO"
    audit_log_file: Annotated[
        str,
        Key(
            STRING,
            "File that the audit log is appended to, or journald's socket; empty: part of the broker's log.",
        ),
    ] = ""
    audit_log_format: Annotated[
        str, Key(STRING, "Form of a line of the audit log.", choices=AUDIT_FORMATS)
    ] = "text"

    num_network_threads: Annotated[
        int,
        Key(
            INT,
            "Processor processes, shared by all listeners (--processors).",
            at_least=1,
            check=partial(fit_the_memory, MAX_PROCESSORS),
            begins="Processes",
        ),
    ] = msgspec.field(default_factory=lambda: default_workers().processors)
    num_io_threads: Annotated[
        int,
        Key(INT, "Handler processes (--handlers).", at_least=1, check=partial(fit_the_memory, MAX_HANDLERS)),
    ] = msgspec.field(default_factory=lambda: default_workers().handlers)
    log_workers: Annotated[
        int,
        Key(
            INT,
            "Log processes, each with its part of the partitions (--log-workers).",
            at_least=1,
            at_most=MAX_LOG_WORKERS,
        ),
    ] = 1
    fetch_purgatory_purge_interval_requests: Annotated[
        int, Key(INT, "Ended operations whose timers may linger before they are purged.", at_least=1)
    ] = 1000
    max_incremental_fetch_session_cache_slots: Annotated[
        int, Key(INT, "Fetch sessions that are kept, in equal shares by the handlers.", at_least=0)
    ] = 1000
    max_request_partition_size_limit: Annotated[
        int, Key(INT, "Partitions in a response to DescribeTopicPartitions.", at_least=1)
    ] = 2000
    handler_hang_timeout_ms: Annotated[
        int,
        Key(LONG, "A process that gives no sign of life for this long is killed and replaced.", at_least=1),
    ] = 30_000

    queued_max_requests: Annotated[
        int,
        Key(
            INT,
            "Requests that may wait for a handler before reading from sockets pauses.",
            at_least=1,
            begins="Network",
        ),
    ] = 500
    queued_max_request_bytes: Annotated[
        int, Key(LONG, "Bytes of requests that may be in memory; -1 takes a share of the machine's.")
    ] = -1
    max_in_flight_requests_per_connection: Annotated[
        int,
        Key(
            INT,
            "Produces, offset commits and heartbeats of a connection that are served at once; "
            "1: each waits for the answer to the one before it.",
            at_least=1,
            at_most=32,
        ),
    ] = 16
    max_parked_bytes: Annotated[
        int, Key(LONG, "Memory of requests that wait for records or for members of a group.", at_least=1)
    ] = 134_217_728
    max_parked_bytes_per_principal: Annotated[
        int, Key(LONG, "The same, of the requests of one user; ANONYMOUS is one.", at_least=1)
    ] = 67_108_864
    max_parked_bytes_per_connection: Annotated[int, Key(LONG, "The same, of one connection.", at_least=1)] = (
        16_777_216
    )
    socket_send_buffer_bytes: Annotated[
        int, Key(INT, "SO_SNDBUF; -1 leaves it to the system.", at_least=-1)
    ] = 102_400
    socket_receive_buffer_bytes: Annotated[
        int, Key(INT, "SO_RCVBUF; -1 leaves it to the system.", at_least=-1)
    ] = 102_400
    socket_listen_backlog_size: Annotated[
        int, Key(INT, "Connections that may wait for accept, within net.core.somaxconn.", at_least=1)
    ] = 50
    socket_request_max_bytes: Annotated[
        int, Key(INT, "Largest request that is read.", at_least=1, at_most=LARGEST_REQUEST_BYTES)
    ] = 104_857_600
    connections_max_idle_ms: Annotated[
        int, Key(LONG, "Close connections idle for this long; negative: never.")
    ] = 600_000
    connection_failed_authentication_delay_ms: Annotated[
        int, Key(INT, "How long a failed authentication is held back before it is answered.", at_least=0)
    ] = 100
    connection_failed_authentication_delay_max_ms: Annotated[
        int,
        Key(
            INT,
            "Longest pause before an authentication of an address or a user that has failed often is "
            "answered; connection.failed.authentication.delay.ms or less: they have no pauses.",
            at_least=0,
        ),
    ] = 5000
    connections_max_login_ms: Annotated[
        int,
        Key(
            LONG,
            "Close connections of TLS and SASL listeners that are not authenticated within this time.",
            at_least=1,
        ),
    ] = 30_000
    max_unauthenticated_connections: Annotated[
        int,
        Key(
            INT,
            "Connections of TLS and SASL listeners that may be without authentication at once; beyond that "
            "the oldest of them are closed.",
            at_least=1,
        ),
    ] = 2000
    max_connections: Annotated[int, Key(INT, "Connections that may be open at once.", at_least=0)] = INT_MAX
    max_connections_per_ip: Annotated[
        int, Key(INT, "Connections that one address may have open at once.", at_least=0)
    ] = INT_MAX
    max_connections_per_ip_overrides: Annotated[
        tuple[str, ...],
        Key(LIST, "Other limits for single addresses, as HOST:COUNT.", check=limits.overrides_problem),
    ] = ()
    max_connection_creation_rate: Annotated[
        int, Key(INT, "Connections a second that are accepted; more than that wait.", at_least=0)
    ] = INT_MAX
    fetch_max_bytes: Annotated[int, Key(INT, "Upper limit of one fetch response.", at_least=1024)] = (
        57_671_680
    )

    quota_window_num: Annotated[
        int, Key(INT, "Samples over which the rate of a client is measured.", at_least=1, begins="Quotas")
    ] = 11
    quota_window_size_seconds: Annotated[
        int, Key(INT, "Length of one of those samples, in seconds.", at_least=1)
    ] = 1
    controller_quota_window_num: Annotated[
        int, Key(INT, "Windows of controller mutations that a client may use up at once.", at_least=1)
    ] = 11
    controller_quota_window_size_seconds: Annotated[
        int, Key(INT, "Length of one of those windows, in seconds.", at_least=1)
    ] = 1

    message_max_bytes: Annotated[
        int, Key(INT, "Largest record batch that is accepted.", at_least=0, begins="Records")
    ] = 1_048_588
    compression_type: Annotated[
        str,
        Key(
            STRING,
            "Codec of stored batches; producer keeps the producer's, uncompressed stores them plain.",
            choices=CODECS,
        ),
    ] = "producer"
    compression_gzip_level: Annotated[
        int, Key(INT, "Level used when compressing with gzip.", check=gzip_level)
    ] = -1
    compression_lz4_level: Annotated[
        int, Key(INT, "Level used when compressing with lz4.", at_least=1, at_most=17)
    ] = 9
    compression_zstd_level: Annotated[
        int, Key(INT, "Level used when compressing with zstd.", at_least=-131072, at_most=22)
    ] = 3
    log_message_timestamp_type: Annotated[
        str,
        Key(STRING, "Whose clock stamps records: the producer's or the broker's.", choices=TIMESTAMP_TYPES),
    ] = "CreateTime"
    log_message_timestamp_before_max_ms: Annotated[
        int, Key(LONG, "How far a record's timestamp may lie in the past.", at_least=0)
    ] = LONG_MAX
    log_message_timestamp_after_max_ms: Annotated[
        int, Key(LONG, "How far a record's timestamp may lie in the future.", at_least=0)
    ] = HOUR_MS
    producer_id_expiration_ms: Annotated[
        int, Key(INT, "Forget the sequence numbers of a producer idle for this long.", at_least=1)
    ] = 86_400_000
    max_producer_ids_per_partition: Annotated[
        int,
        Key(
            INT,
            "Forget the producers of a partition that have not written for longest if there are more; those "
            "with open transactions stay.",
            at_least=1,
        ),
    ] = 10_000

    log_dirs: Annotated[
        tuple[str, ...],
        Key(
            LIST,
            "Directories that hold the partitions; log.dir is the same.",
            synonyms=("log.dirs", "log.dir"),
            begins="The log",
        ),
    ] = (DEFAULT_LOG_DIR,)
    log_segment_bytes: Annotated[
        int, Key(INT, "Size at which a new segment is begun.", at_least=1_048_576)
    ] = 1_073_741_824
    log_roll_ms: Annotated[
        int | None,
        Key(
            LONG,
            "Age at which a new segment is begun; log.roll.hours if not set.",
            at_least=1,
            synonyms=("log.roll.ms", "log.roll.hours"),
        ),
    ] = None
    log_roll_hours: Annotated[
        int,
        Key(
            INT,
            "Age at which a new segment is begun, in hours.",
            at_least=1,
            synonyms=("log.roll.ms", "log.roll.hours"),
        ),
    ] = 168
    log_roll_jitter_ms: Annotated[
        int | None,
        Key(
            LONG,
            "Random time taken off the age at which segments roll.",
            at_least=0,
            synonyms=("log.roll.jitter.ms", "log.roll.jitter.hours"),
        ),
    ] = None
    log_roll_jitter_hours: Annotated[
        int,
        Key(
            INT,
            "Random time taken off the age at which segments roll, in hours.",
            at_least=0,
            synonyms=("log.roll.jitter.ms", "log.roll.jitter.hours"),
        ),
    ] = 0
    log_index_interval_bytes: Annotated[
        int, Key(INT, "Bytes of records between two entries of the offset index.", at_least=0)
    ] = 4096
    log_index_size_max_bytes: Annotated[int, Key(INT, "Largest size of an offset index.", at_least=4)] = (
        10_485_760
    )
    log_preallocate: Annotated[
        bool, Key(BOOLEAN, "Give new segments their full size at once.", pending=_NO_PREALLOCATION)
    ] = False
    log_flush_policy: Annotated[
        str,
        Key(
            STRING,
            "group: acked and readable means on disk; os: the page cache is enough.",
            choices=FLUSH_POLICIES,
        ),
    ] = "group"
    log_journal_bytes: Annotated[
        int,
        Key(
            LONG,
            "Size of a log worker's commit journal in each log directory, the most that is replayed of it.",
            at_least=1_048_576,
        ),
    ] = 67_108_864
    log_journal_direct_bytes: Annotated[
        int,
        Key(
            INT,
            "A commit that has this much for a file syncs the file instead of writing it to the journal.",
            at_least=0,
        ),
    ] = 262_144
    log_reserve_bytes: Annotated[
        int,
        Key(
            LONG,
            "Room kept in each log directory for checkpoints and a clean stop when the disk is full.",
            at_least=0,
        ),
    ] = 8_388_608
    log_flush_interval_messages: Annotated[
        int,
        Key(LONG, "Records after which a log's segment itself is synced; also flush.messages.", at_least=1),
    ] = LONG_MAX
    log_flush_interval_ms: Annotated[
        int | None,
        Key(
            LONG,
            "Time after which a log's segment itself is synced; also flush.ms.",
            synonyms=("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
        ),
    ] = None
    num_recovery_threads_per_data_dir: Annotated[
        int,
        Key(
            INT, "Worker processes for each log directory that open its partitions at the start.", at_least=1
        ),
    ] = 2
    num_replica_alter_log_dirs_threads: Annotated[
        int | None,
        Key(
            INT,
            "Threads of each log worker that copy partitions to another log directory; as many as there are "
            "log directories if it is not set.",
            at_least=1,
        ),
    ] = None
    replica_alter_log_dirs_io_max_bytes_per_second: Annotated[
        int,
        Key(
            LONG,
            "Bytes that are copied in a second when partitions move to another log directory.",
            at_least=1,
        ),
    ] = 9223372036854775807
    log_flush_offset_checkpoint_interval_ms: Annotated[
        int, Key(INT, "Time between two writes of the recovery point checkpoint.", at_least=0)
    ] = 60_000
    log_flush_start_offset_checkpoint_interval_ms: Annotated[
        int,
        Key(
            INT,
            "Time between two writes of the log start offset checkpoint.",
            at_least=0,
            pending=_NO_LOG_START_TIMER,
        ),
    ] = 60_000

    log_cleanup_policy: Annotated[
        tuple[str, ...],
        Key(
            LIST,
            "What happens to old segments: delete, compact, or both.",
            choices=CLEANUP_POLICIES,
            begins="Retention and compaction",
        ),
    ] = ("delete",)
    log_retention_ms: Annotated[
        int | None,
        Key(
            LONG,
            "Age at which segments are deleted; -1: never.",
            check=nonzero,
            synonyms=("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
        ),
    ] = None
    log_retention_minutes: Annotated[
        int | None,
        Key(
            INT,
            "Age at which segments are deleted, in minutes, if log.retention.ms is not set.",
            check=nonzero,
            synonyms=("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
        ),
    ] = None
    log_retention_hours: Annotated[
        int,
        Key(
            INT,
            "Age at which segments are deleted, in hours, if neither of the finer keys is set.",
            check=nonzero,
            synonyms=("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
        ),
    ] = 168
    log_retention_bytes: Annotated[
        int, Key(LONG, "Size of a partition above which old segments are deleted; -1: no limit.")
    ] = -1
    log_retention_check_interval_ms: Annotated[
        int, Key(LONG, "Time between two checks for segments to delete.", at_least=1)
    ] = 300_000
    log_initial_task_delay_ms: Annotated[
        int, Key(LONG, "Time from the start to the first check for segments to delete.", at_least=0)
    ] = 30_000
    log_segment_delete_delay_ms: Annotated[
        int, Key(LONG, "Time for which a deleted file stays readable for those who have it open.", at_least=0)
    ] = 60_000
    log_cleaner_min_cleanable_ratio: Annotated[
        float, Key(DOUBLE, "Share of dirty bytes from which a log is compacted.", at_least=0, at_most=1)
    ] = 0.5
    log_cleaner_delete_retention_ms: Annotated[
        int, Key(LONG, "Time for which tombstones are kept.", at_least=0)
    ] = 86_400_000
    log_cleaner_min_compaction_lag_ms: Annotated[
        int, Key(LONG, "Age below which a record is never compacted.", at_least=0)
    ] = 0
    log_cleaner_max_compaction_lag_ms: Annotated[
        int, Key(LONG, "Age above which a record waits no longer for compaction.", at_least=1)
    ] = LONG_MAX

    log_cleaner_enable: Annotated[bool, Key(BOOLEAN, "Compact topics whose cleanup.policy is compact.")] = (
        True
    )
    log_cleaner_backoff_ms: Annotated[
        int, Key(LONG, "Time between two checks for something to compact.", at_least=0)
    ] = 15_000
    log_cleaner_dedupe_buffer_size: Annotated[
        int, Key(LONG, "Memory for the keys of one compaction, 24 bytes each.", at_least=1024)
    ] = 134_217_728
    log_cleaner_io_buffer_size: Annotated[
        int, Key(INT, "Memory for the bytes that a compaction reads and writes.", at_least=0)
    ] = 524_288
    log_cleaner_io_buffer_load_factor: Annotated[
        float, Key(DOUBLE, "How full the memory for keys may become.", at_least=0.01, at_most=1)
    ] = 0.9
    log_cleaner_io_max_bytes_per_second: Annotated[
        float, Key(DOUBLE, "Bytes that compaction reads and writes in a second.", at_least=1)
    ] = 1.7976931348623157e308

    log_scrub_max_bytes_per_second: Annotated[
        int,
        Key(
            LONG, "Bytes that the scrubber reads in a second to find damage; 0: it does not run.", at_least=0
        ),
    ] = 8 << 20
    log_scrub_interval_ms: Annotated[
        int, Key(LONG, "Time between the beginnings of two scrubs of a log directory.", at_least=1)
    ] = 604_800_000

    # Place where each key that was set is written ("server.properties:12", "--handlers"), by Kafka key.
    origins: dict[str, str] = msgspec.field(default_factory=dict)
    # Security settings by listener name, and by `NAME/MECHANISM` (security.resolve).
    listener_security: dict[str, SecuritySettings] = msgspec.field(default_factory=dict)

    # Limits of single listeners, by name.
    listener_limits: dict[str, limits.ListenerLimits] = msgspec.field(default_factory=dict)

    # Texts in file and flags of settings that have no effect here.
    idle: dict[str, str] = msgspec.field(default_factory=dict)
    # Settings altered by clients, and the values that they override. The fields above have the result.
    altered: Altered = msgspec.field(default_factory=Altered)
    # Accepted numbers of workers that are not reached yet, by key.
    resizing_to: dict[str, int] = msgspec.field(default_factory=dict)

    def security_of(self, listener: str, mechanism: str = "") -> SecuritySettings:
        """Return the security settings of a listener, or of one SASL mechanism of the listener."""
        return self.listener_security.get(f"{listener}/{mechanism}" if mechanism else listener, self)

    @property
    def control_plane(self) -> Listener | None:
        return next((one for one in self.listeners if one.name == self.control_plane_listener_name), None)

    def is_privileged(self, listener: str) -> bool:
        """Return whether only brokers and operators reach the listener.

        True for the control plane's listener or, without a control plane, for the inter-broker listener.
        """
        return listener == (self.control_plane_listener_name or self.inter_broker_listener_name)

    def may_administer(self, listener: str) -> bool:
        """Return whether administrative requests are served on the listener (admin.listener.names)."""
        return not self.admin_listener_names or listener in self.admin_listener_names

    @property
    def roll_ms(self) -> int:
        """Return the value of segment.ms for topics that do not set it."""
        return self.log_roll_ms if self.log_roll_ms is not None else self.log_roll_hours * HOUR_MS

    @property
    def roll_jitter_ms(self) -> int:
        """Return the value of segment.jitter.ms for topics that do not set it."""
        jitter_ms = self.log_roll_jitter_ms
        return self.log_roll_jitter_hours * HOUR_MS if jitter_ms is None else jitter_ms

    @property
    def retention_ms(self) -> int:
        """Return the value of retention.ms for topics that do not set it.

        Any negative number means unlimited and becomes -1.
        """
        if self.log_retention_ms is not None:
            time_ms = self.log_retention_ms
        elif self.log_retention_minutes is not None:
            time_ms = self.log_retention_minutes * MINUTE_MS
        else:
            time_ms = self.log_retention_hours * HOUR_MS
        return max(time_ms, -1)

    @property
    def flush_ms(self) -> int:
        """Return the value of flush.ms for topics that do not set it."""
        return self.log_flush_interval_ms if self.log_flush_interval_ms is not None else LONG_MAX


BROKER_KEYS: dict[str, Key] = table_of(BrokerConfig)
