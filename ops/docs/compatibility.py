"""Writes docs/COMPATIBILITY.md from what the code registers: `python -m ops.docs.compatibility`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from textwrap import fill

from mpbroker.config.dynamic import DYNAMIC
from mpbroker.handlers.apis import all_apis
from mpbroker.protocol.api_keys import ApiKey, valid_versions
from ops.docs import not_served

PAGE = Path(__file__).parents[2] / "docs" / "COMPATIBILITY.md"

INTRODUCTION = """\
# Compatibility

mpbroker speaks the protocol of Apache Kafka 4.3: its error codes, its record format, and {count} APIs
of Kafka's brokers, in these versions. A request for another one closes the connection. This page is made
from the code by `python -m ops.docs.compatibility`.

"""

TESTED = """
## Clients that are tested

Every change is tested against librdkafka (confluent-kafka and kcat), kafka-python, aiokafka, franz-go,
Kafka's Java clients and its command-line tools. With `group.protocol=consumer`, 75 of the 77 of librdkafka's
own tests that pass with Apache Kafka 4.3 pass here each time, and so do franz-go's.

mpbroker's own commands and `format("mpbroker")` also work with Apache Kafka's brokers: 4.3 is tested, 2.8.2
and 3.3.2 were tried by hand. A command that needs a request which the broker lacks says so.
"""

# APIs whose first sentence adds to their name.
OWN_WAYS = (
    *(ApiKey.PRODUCE, ApiKey.FIND_COORDINATOR, ApiKey.WRITE_TXN_MARKERS, ApiKey.ALTER_REPLICA_LOG_DIRS),
    *(ApiKey.ELECT_LEADERS, ApiKey.ALTER_PARTITION_REASSIGNMENTS, ApiKey.LIST_PARTITION_REASSIGNMENTS),
    *(ApiKey.DESCRIBE_QUORUM, ApiKey.UPDATE_FEATURES, ApiKey.UNREGISTER_BROKER),
)
# Missing features, and the broker's behaviour instead.
NOT_BUILT = (
    ("SASL GSSAPI", "its settings are refused at start"),
    ("authorizers other than `StandardAuthorizer`", "refused at start: Java plug-ins cannot be loaded"),
    (
        "altering passwords and security settings of single listeners",
        "refused with INVALID_REQUEST: the file has them, and `mpbroker ctl reload` reads it",
    ),
    ("replication", "one replica"),
    ("JMX", "the same metrics over HTTP for Prometheus, or `mpbroker ctl metrics --json`"),
    (
        "Spark: continuous mode",
        "its [real-time trigger](SPARK.md#streams), or micro-batches, which are woken when records come",
    ),
)

DYNAMIC_SETTINGS = """
## Settings of the broker that clients may alter

By AlterConfigs and IncrementalAlterConfigs ([OPERATING](OPERATING.md#by-clients)), with `max.connections` and
`max.connection.creation.rate` also of single listeners (`listener.name.<listener>.`):

"""

CLOSING = """
## Where it differs from Kafka on purpose

* The high watermark is the durable end (`log.flush.policy=group`); `log.flush.policy=os` is Kafka's
  behaviour. ListOffsets and DeleteRecords wait for the sync under way if their answer depends on it:
  REQUEST_TIMED_OUT after the request's timeout, or after 30 s without one.
* A replication factor above 1 is refused with INVALID_REPLICATION_FACTOR, `min.insync.replicas` above 1 at
  the start or with INVALID_CONFIG. With `mpbroker.replication.factor.clamp=true` both are taken, and there is
  one replica.
* [Loggers](OPERATING.md#the-log) are the broker's own; the [audit log](SECURITY.md#the-audit-log) has the
  lines of Kafka's `kafka.authorizer.logger`.
* Owners of delegation tokens are users. A token cannot be used from the moment when it expires.
* Groups of librdkafka's `cooperative-sticky` can move to the consumer protocol; Kafka refuses them. Members
  keep what they have in a move.
* Settings of share groups and of streams groups are checked, kept, listed and described, without effect yet.
* GetTelemetrySubscriptions and PushTelemetry are served with `client.telemetry.enable=true`; Kafka serves
  them with a receiver's plug-in. A push of more than 16 MiB, decompressed, is answered INVALID_RECORD.
* `flush.ms` and `flush.messages` have the segment itself synced under both values of `log.flush.policy`.
  acks=all waits for a sync that `flush.messages` made due, acks=1 does not; `flush.ms` is checked twice a
  second.
* InitProducerId with an epoch that is refused aborts nothing; Kafka aborts the open transaction first.
* AddPartitionsToTxn has no versions 4 and 5, which brokers use among each other.
* Internal topics take no client's records. Kafka takes them from a client that calls itself `__admin_client`.
* A batch whose compressed records cannot be read is answered INVALID_RECORD, not with a retriable error.
  Bytes after an lz4 frame, which Kafka ignores, are such an error; the frame's content checksum is checked.
* A string that takes more than 32,767 bytes with U+FFFD for bytes that are not UTF-8 closes the connection.
* A response names at most 100 refused records of a batch, with the number of all; Kafka names each.
* [NETWORK](NETWORK.md) has the differences of the network layer.

## Where `format("mpbroker")` differs from Spark's Kafka source on purpose

A program changes the format and keeps its options.

* `kafka.isolation.level` is `read_committed` unless it is given; the connector's default also reads aborted
  records.
* `maxRecordsPerPartition` bounds the tasks of batches, too; the connector obeys it in streams only.
* `endingTimestamp` is refused in a stream, like the other ends; the connector ignores it.
* An end beyond the log's end fails at once; the connector waits for `kafkaConsumer.pollTimeoutMs`.
* No consumer group is joined: `kafka.group.id` and `groupIdPrefix` get a warning, and `commitGroupId` reports
  the lag.
* Java classes do not run: `kafka.interceptor.classes` of the sink is refused, and so is a
  `kafka.partitioner.class` other than Kafka's `DefaultPartitioner`, `UniformStickyPartitioner` and
  `RoundRobinPartitioner`.
* Rows without a key take a topic's partitions in turn, whatever the settings of the adaptive partitioner.
* The sink writes the column `timestamp`; the connector ignores it.
* `kafka.transactional.id` is refused before anything is written: `exactlyOnce` names the transactions.
* A login comes with the query's options, from `kafka.sasl.jaas.config`; only GSSAPI and OAUTHBEARER also
  look into the JVM's JAAS file, and only with the JVM reader.
  Delegation tokens that `spark.kafka.clusters.*` sets up are refused, unless `kafka.security.protocol` is
  given. Without the JVM reader's jar `session()` warns of them: Python does not see Spark's settings later.
* `spark.kafka.consumer.cache.*`, `spark.kafka.producer.cache.*` and
  `spark.sql.streaming.kafka.useDeprecatedOffsetFetching` have no effect: tasks keep connections, not
  consumers.
* An unknown `kafka.…` name gets a warning; so does a misspelt option.
"""


def page() -> str:
    table = ["## Not built yet", "", *(f"* {what}: {instead}" for what, instead in NOT_BUILT)]
    of_brokers = len(ApiKey) - len(not_served.OF_CONTROLLERS)
    introduction = INTRODUCTION.format(count=f"{len(all_apis())} of the {of_brokers}")
    head = introduction + _apis() + TESTED + "\n"
    missing_apis = "\n" + not_served.table()
    return head + "\n".join(table) + "\n" + missing_apis + DYNAMIC_SETTINGS + _dynamic() + CLOSING


def _apis() -> str:
    """Return the list of all APIs, and a line for each API that differs from Kafka's (OWN_WAYS)."""
    named = []
    for api in all_apis().values():
        kafka = valid_versions(api.key)
        served, all_of_them = _span(api.oldest, api.latest), _span(kafka[0], kafka[-1])
        named.append(f"{api.name} {served}" + ("" if served == all_of_them else f" (of {all_of_them})"))
    own = [all_apis()[key] for key in OWN_WAYS]
    return fill(", ".join(named), 110) + ".\n\n" + "".join(f"* {api.name}: {api.summary}\n" for api in own)


def _span(oldest: int, latest: int) -> str:
    return f"{oldest}-{latest}" if oldest != latest else str(oldest)


def _dynamic() -> str:
    others = "Kafka's other dynamic settings and unknown names are kept and shown **without effect**, and"
    rest = "DescribeConfigs shows that. All others are read-only: the file has them."
    return f"{_listed(DYNAMIC)}.\n\n{others}\n{rest}\n"


def _listed(keys: Iterable[str]) -> str:
    return fill(", ".join(f"`{key}`" for key in sorted(keys)), 110, break_on_hyphens=False)


if __name__ == "__main__":
    PAGE.write_text(page())
