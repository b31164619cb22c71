"""Makes the topics that a mirror writes to: with the partitions and the settings of its sources.

A mirror does so when it starts, and on the driver before each batch, since sources may be created or grow
while it runs. Topics must exist before tasks write: a write would make the broker create a missing topic,
with the broker's default number of partitions.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from mpbroker.client.admin import Admin
from mpbroker.client.cluster import Cluster
from mpbroker.client.errors import ApiFailed, ClientError
from mpbroker.migration.errors import CannotMove
from mpbroker.migration.metadata_log import read_image
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.numbers import ConfigResourceType
from mpbroker.protocol.topic_names import METADATA_TOPIC
from mpbroker.reading.catalogs import open_catalog
from mpbroker.reading.log_dirs import with_siblings
from mpbroker.reading.options import ReadOptions, parse_options
from mpbroker.reading.plan import selected
from mpbroker.reading.remote_catalog import Brokers
from mpbroker.writing.options import WriteOptions
from mpbroker.writing.rows import open_cluster
from spark_integration.jobs.frame import JobError

_LOG = logging.getLogger("mpbroker.spark")
_PREFIX: Final = "mirror."
_SOURCE: Final = "mirror.source."
# As MirrorMaker: they are about replicas, or would replace timestamps. (Kafka: DefaultConfigPropertyFilter.)
_NOT_COPIED: Final = frozenset(
    {
        "follower.replication.throttled.replicas",
        "leader.replication.throttled.replicas",
        "message.timestamp.type",
        "min.insync.replicas",
        "unclean.leader.election.enable",
    }
)
# Kafka: DescribeConfigsResponse.ConfigSource.TOPIC_CONFIG.
_OWN_SETTING: Final = 1


@dataclass(frozen=True)
class Targets:
    """The topics that a mirror reads, and how their copies are named.

    With `keep_partitions` records go into partitions of the same numbers. The sink's options carry these
    fields to the process that begins a batch.
    """

    source: Mapping[str, str]
    prefix: str
    keep_partitions: bool

    def options(self) -> dict[str, str]:
        # Spark keeps options out of its logs and pages by their names, as those with passwords.
        return {
            **{f"{_SOURCE}{name}": value for name, value in self.source.items()},
            f"{_PREFIX}prefix": self.prefix,
            f"{_PREFIX}keep": str(self.keep_partitions),
        }

    @staticmethod
    def of(options: Mapping[str, str]) -> Targets | None:
        """Return the targets in the options of a sink; None for a sink without a mirror."""
        if f"{_PREFIX}prefix" not in options:
            return None
        source = {n.removeprefix(_SOURCE): value for n, value in options.items() if n.startswith(_SOURCE)}
        return Targets(source, options[f"{_PREFIX}prefix"], options[f"{_PREFIX}keep"] == str(True))

    def make(self, sink: WriteOptions, *, has_begun: bool) -> list[str]:
        """Create the topics that do not exist, and return their names.

        With `keep_partitions`, an existing topic may have fewer partitions than its source. If the mirror
        `has_begun`, the source has grown, so add the missing partitions. If it has not begun, raise JobError,
        since the topic is not this mirror's. Also raise JobError if a topic would be copied onto itself, or
        if a request to a cluster fails. Raises OptionError, SourceUnavailable.
        """
        source = parse_options(dict(self.source), streaming=True)
        counts: dict[str, int] = {}
        with closing(open_catalog(source)) as catalog:
            for topic in dict.fromkeys(topic for topic, _ in selected(catalog, source)):
                counts[topic] = max(catalog.partitions(topic)) + 1
        wanted: dict[str, str] = {}
        for topic in sorted(counts, key=lambda one: -counts[one]):
            wanted.setdefault(sink.topic or f"{self.prefix}{topic}", topic)
        try:
            with closing(open_cluster(sink)) as cluster:
                there, cluster_id = _partitions(cluster, sink, list(wanted))
                itself = [topic for name, topic in wanted.items() if name == topic]
                if itself and cluster_id and cluster_id == _cluster_id(source):
                    raise JobError(
                        f"topic {itself[0]} would be copied onto itself, over and over: it is read from the "
                        f"cluster of {sink.bootstrap_servers}. Name another cluster, or a --prefix"
                    )
                if self.keep_partitions:
                    for name, topic in wanted.items():
                        if there.get(name, counts[topic]) < counts[topic]:
                            short = _TooFew(name, there[name], topic, counts[topic], sink.bootstrap_servers)
                            if not has_begun:
                                raise JobError(short.text())
                            _grow(cluster, short)
                missing = {name: topic for name, topic in wanted.items() if name not in there}
                if missing:
                    settings = _settings(source, missing, counts)
                    for name, topic in missing.items():
                        _create(cluster, sink, name, counts[topic], settings.get(topic, {}))
                return list(missing)
        except ClientError as error:
            raise JobError(str(error)) from error


def _cluster_id(source: ReadOptions) -> str | None:
    """Return the id of the cluster that is read; None if it has none. Raises ClientError."""
    if source.bootstrap_servers is None:
        return next(iter(with_siblings(source.log_dirs).values())).cluster_id
    with closing(open_cluster(WriteOptions(source.bootstrap_servers, client=source.client))) as cluster:
        return cluster.refresh().cluster_id


def _partitions(cluster: Cluster, sink: WriteOptions, names: list[str]) -> tuple[dict[str, int], str | None]:
    """Return the number of partitions of those topics that exist, and the cluster's id.

    Raises JobError, ClientError.
    """
    found = {}
    answer = cluster.refresh(names)
    for topic in answer.topics:
        if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            continue
        # A topic that is being made has partitions without leaders; who writes waits for those.
        if topic.error_code not in (0, ErrorCode.LEADER_NOT_AVAILABLE):
            why = ApiFailed(f"topic {topic.name}", topic.error_code)
            raise JobError(f"{why}, asked of {sink.bootstrap_servers}: allow this user to describe the topic")
        found[topic.name or ""] = len(topic.partitions)
    return found, answer.cluster_id


class _TooFew(NamedTuple):
    """A target topic with fewer partitions than its source."""

    name: str
    there: int
    source: str
    wanted: int
    servers: str

    def text(self, why: object = "") -> str:
        return (
            f"topic {self.name} of {self.servers} has {self.there} of the {self.wanted} partitions of topic "
            f"{self.source}, so records cannot keep theirs{why}: run mpbroker topic alter {self.name} "
            f"--partitions {self.wanted} -b {self.servers}, or mirror with --by-key"
        )


def _grow(cluster: Cluster, short: _TooFew) -> None:
    """Add the partitions that a topic lacks. Raises JobError, ClientError."""
    try:
        Admin(cluster).create_partitions(short.name, short.wanted, cluster.config.request_timeout_ms / 1000)
    except ApiFailed as why:
        raise JobError(short.text(f" ({why})")) from why
    _LOG.info("topic %s has %d partitions now, as topic %s", short.name, short.wanted, short.source)


def _create(cluster: Cluster, sink: WriteOptions, name: str, count: int, settings: Mapping[str, str]) -> None:
    """Create a topic with the replicas that its cluster gives by default. Raises JobError, ClientError."""
    try:
        Admin(cluster).create_topic(name, count, -1, settings)
    except ApiFailed as why:
        if why.code is ErrorCode.TOPIC_ALREADY_EXISTS:
            return
        raise JobError(
            f"topic {name} does not exist at {sink.bootstrap_servers} and cannot be created: {why}. Allow "
            f"this user to create it, or create it with {count} partitions"
        ) from why


def _settings(
    source: ReadOptions, missing: Mapping[str, str], counts: Mapping[str, int]
) -> dict[str, dict[str, str]]:
    """Return the settings to copy: those that a source topic itself sets. Raises JobError, ClientError."""
    topics = list(missing.values())
    if source.bootstrap_servers is not None:
        found = _asked(source, topics, counts)
    else:
        try:
            (directory,) = (
                path
                for one in with_siblings(source.log_dirs)
                if (path := Path(one) / f"{METADATA_TOPIC}-0").is_dir()
            )
            configs = read_image(directory, is_log_whole=True).configs
        except (ValueError, CannotMove) as error:
            name, topic = next(iter(missing.items()))
            raise JobError(
                f"topic {name} does not exist, and the settings that it would get are not to be read in "
                f"{', '.join(source.log_dirs)} ({error}): name the brokers that have topic {topic} with "
                f"--bootstrap-server, or create {name} with {counts[topic]} partitions"
            ) from error
        found = {topic: configs.get((ConfigResourceType.TOPIC, topic), {}) for topic in topics}
    return {
        topic: {name: value for name, value in settings.items() if name not in _NOT_COPIED}
        for topic, settings in found.items()
    }


def _asked(source: ReadOptions, topics: list[str], counts: Mapping[str, int]) -> dict[str, dict[str, str]]:
    """Return the topics' own settings, from the source's brokers. Raises JobError, ClientError."""
    found: dict[str, dict[str, str]] = {}
    with closing(Brokers(source)) as brokers:
        admin = Admin(brokers.cluster)
        for topic in topics:
            try:
                configs = admin.topic_configs(topic)
            except ApiFailed as why:
                raise JobError(
                    f"{why}: allow this user to describe them at {source.bootstrap_servers}, or create the "
                    f"topic there with {counts[topic]} partitions"
                ) from why
            found[topic] = {
                one.name: one.value
                for one in configs
                if one.config_source == _OWN_SETTING and one.value is not None
            }
    return found
