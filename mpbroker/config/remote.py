"""Settings of tiered storage: where the object store is, its limits, and the defaults of local retention.

Names, types and defaults are Kafka's (RemoteLogManagerConfig, LogConfig, as of 4.3) where Kafka has the
setting. Credentials and endpoints of a store come from the environment variables of its cloud, such as
AWS_ACCESS_KEY_ID: they are no settings, so that no file and no log of the broker has them.
"""

from collections.abc import Iterator
from typing import Annotated, Final
from urllib.parse import urlsplit

from mpbroker.config.coordinators import CoordinatorSettings
from mpbroker.config.integers import LONG_MAX
from mpbroker.config.keys import ConfigType, Key
from mpbroker.config.otlp import without_secrets

BOOLEAN, INT, LONG, STRING = ConfigType.BOOLEAN, ConfigType.INT, ConfigType.LONG, ConfigType.STRING

AS_RETENTION: Final = -2
"""The value of a local retention that takes the value of the whole retention."""
SYSTEM_ENABLE: Final = "remote.log.storage.system.enable"
REMOTE_URL: Final = "mpbroker.remote.url"
ACKS: Final = "mpbroker.remote.acks"
REMOTE_ACKS: Final = ("local", "ledger")
READ_ONLY: Final = "mpbroker.remote.read.only"
UNDELETED: Final = "mpbroker.remote.topic.id"
"""Names, in CreateTopics, the deleted topic to bring back by its id. It is not kept as a setting."""
BUCKETS: Final = ("s3", "gs", "az")
"""Schemes of URLs that name a bucket, or a container of Azure."""
_FORMS: Final = "s3://bucket/prefix, gs://bucket/prefix, az://container/prefix or file:///path"


def url_problem(url: str) -> str:
    """Return the problem with the URL of an object store, or ""."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return f"it must be {_FORMS}"
    if parts.scheme == "file":
        is_whole = not parts.netloc and len(parts.path) > 1
    else:
        is_whole = parts.scheme in BUCKETS and bool(parts.netloc)
    if not url or (is_whole and not (parts.query or parts.fragment or "@" in parts.netloc)):
        return ""
    if is_whole:
        return "it must be without a password or a query: credentials come from the environment"
    return f"it must be {_FORMS}"


def local_retention_problem(key: str, whole: int, local: int) -> str:
    """Return the problem with a local retention beside the whole one, as Kafka says it, or "".

    `key` is that of the whole retention: retention.ms or retention.bytes.
    (Kafka: LogConfig.validateRemoteStorageRetentionSize and -Time.)
    """
    if whole < 0 or local == AS_RETENTION:
        return ""
    start = f"Invalid value {local} for configuration local.{key}: "
    if local == -1:
        return f"{start}Value must not be -1 as {key} value is set as {whole}."
    if local > whole:
        return f"{start}Value must not be more than {key} property value: {whole}"
    return ""


class RemoteSettings(CoordinatorSettings, frozen=True, kw_only=True):
    """Settings of tiered storage. BrokerConfig derives from this class, and so from CoordinatorSettings."""

    remote_log_storage_system_enable: Annotated[
        bool,
        Key(
            BOOLEAN,
            "Copy sealed segments of topics with remote.storage.enable to an object store.",
            begins="Tiered storage",
        ),
    ] = False
    mpbroker_remote_url: Annotated[
        str,
        Key(
            STRING,
            f"The object store: {_FORMS}. Credentials come from the environment, as the cloud's tools have "
            "them.",
            check=url_problem,
            shown=without_secrets,
        ),
    ] = ""
    mpbroker_remote_request_timeout_ms: Annotated[
        int, Key(LONG, "Time after which a request to the object store has failed.", at_least=1)
    ] = 30_000
    mpbroker_remote_commit_interval_ms: Annotated[
        int, Key(LONG, "Time in which copied segments are gathered for one ledger entry.", at_least=1)
    ] = 1_000
    mpbroker_remote_cache_bytes: Annotated[
        int, Key(LONG, "Disk space for what is fetched from the object store.", at_least=64 << 20)
    ] = 1 << 30
    mpbroker_remote_delete_delay_ms: Annotated[
        int,
        Key(LONG, "Time for which those who read deleted remote segments can go on.", at_least=0),
    ] = 3_600_000
    mpbroker_remote_checkpoint_interval_ms: Annotated[
        int,
        Key(
            LONG,
            "Time between two cuts: what a restore from the object store brings back is as of a cut.",
            at_least=1_000,
        ),
    ] = 60_000
    mpbroker_remote_checkpoint_retention_ms: Annotated[
        int, Key(LONG, "Time for which cuts are kept; the newest one always is.", at_least=0)
    ] = 86_400_000
    mpbroker_remote_acks: Annotated[
        str,
        Key(
            STRING,
            "When records are acknowledged and seen: local: when they are on the disks of this machine; "
            "ledger: when they are in the object store, too.",
            choices=REMOTE_ACKS,
        ),
    ] = "local"
    mpbroker_remote_read_only: Annotated[
        bool,
        Key(
            BOOLEAN,
            "The broker reads an object store that is another one's, and writes nothing there: a fork.",
        ),
    ] = False
    mpbroker_remote_lease_ms: Annotated[
        int,
        Key(
            LONG,
            "Time without a ledger entry after which a standby takes over; the owner stops a tenth earlier.",
            at_least=1_000,
        ),
    ] = 30_000
    log_local_retention_ms: Annotated[
        int,
        Key(
            LONG,
            "Age at which copied segments of tiered topics are deleted locally; -2: as log.retention.ms.",
            at_least=AS_RETENTION,
        ),
    ] = AS_RETENTION
    log_local_retention_bytes: Annotated[
        int,
        Key(
            LONG,
            "Local size of a tiered partition above which copied segments are deleted locally; "
            "-2: as log.retention.bytes.",
            at_least=AS_RETENTION,
        ),
    ] = AS_RETENTION
    remote_log_manager_task_interval_ms: Annotated[
        int, Key(LONG, "Time between two searches for segments to copy and to remove.", at_least=1)
    ] = 30_000
    remote_log_manager_copy_max_bytes_per_second: Annotated[
        int, Key(LONG, "Bytes that are copied to the object store in a second.", at_least=1)
    ] = LONG_MAX
    remote_log_manager_fetch_max_bytes_per_second: Annotated[
        int, Key(LONG, "Bytes that are fetched from the object store in a second.", at_least=1)
    ] = LONG_MAX
    remote_fetch_max_wait_ms: Annotated[
        int, Key(INT, "Longest time that a fetch waits for remote data.", at_least=1)
    ] = 500
    remote_log_reader_threads: Annotated[
        int, Key(INT, "Threads that fetch from the object store.", at_least=1, at_most=1000)
    ] = 10
    remote_list_offsets_request_timeout_ms: Annotated[
        int, Key(LONG, "Longest time that a search for a timestamp waits for remote data.", at_least=1)
    ] = 30_000

    @property
    def ships_rounds(self) -> bool:
        """Return whether a commit round ends only when it is in the object store."""
        return self.remote_log_storage_system_enable and self.mpbroker_remote_acks == "ledger"


def remote_contradictions(
    config: RemoteSettings, retention_ms: int, retention_bytes: int
) -> Iterator[tuple[str, str]]:
    """Yield (key, problem) of each setting of tiered storage that contradicts another one.

    The retentions are those that topics inherit. (Kafka: LogConfig.validateBrokerLogConfigValues.)
    """
    if not config.remote_log_storage_system_enable:
        if config.mpbroker_remote_acks == "ledger":
            yield ACKS, f"{ACKS}=ledger needs an object store: set {SYSTEM_ENABLE}=true and {REMOTE_URL}"
        return
    if config.mpbroker_remote_acks == "ledger" and config.mpbroker_remote_read_only:
        yield READ_ONLY, f"{READ_ONLY}=true: then nothing can be acknowledged with {ACKS}=ledger"
    if not config.mpbroker_remote_url:
        yield SYSTEM_ENABLE, f"{SYSTEM_ENABLE}=true needs an object store: set {REMOTE_URL} to {_FORMS}"
    if problem := local_retention_problem(
        "retention.bytes", retention_bytes, config.log_local_retention_bytes
    ):
        yield "log.local.retention.bytes", problem
    if problem := local_retention_problem("retention.ms", retention_ms, config.log_local_retention_ms):
        yield "log.local.retention.ms", problem
