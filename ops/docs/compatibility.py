"""Writes docs/COMPATIBILITY.md from what the code registers: `python -m ops.docs.compatibility`."""

from __future__ import annotations

from pathlib import Path

from mpbroker.config.dynamic import DYNAMIC, IDLE
from mpbroker.handlers.apis import all_apis
from mpbroker.protocol.api_keys import valid_versions
from ops.docs import not_served

PAGE = Path(__file__).parents[2] / "docs" / "COMPATIBILITY.md"

INTRODUCTION = """\
# Compatibility

mpbroker speaks the Kafka protocol of Apache Kafka 4.3: its error codes, its record format, and of its APIs
those in the table, nearly all in the same versions. This page is made from the code by
`python -m ops.docs.compatibility`.

An API that is not in the table is not advertised, and a request for it closes the connection, as Kafka does
with an API that it does not know.

| key | API | versions | Kafka 4.3 | what it does here |
|---:|---|---|---|---|
"""

TESTED = """
Produce is advertised from version 0, as Kafka 4 does, because librdkafka otherwise believes
that the broker cannot store compressed batches; versions 0-2 are refused.

## Clients that are tested

Every change is tested against librdkafka (confluent-kafka and kcat), kafka-python, aiokafka, franz-go, and
Kafka's own Java tools (TopicCommand, ProducerPerformance, the console producer and consumer,
ConsumerGroupCommand, GetOffsetShell, ConfigCommand, DeleteRecordsCommand, LogDirsCommand,
ReassignPartitionsCommand, TransactionsCommand, LeaderElectionCommand, FeatureCommand, ClientMetricsCommand,
DelegationTokenCommand, DumpLogSegments on the written files).

SCRAM needs librdkafka 2.6.1 or newer; older ones send their nonce doubled, which Kafka 4 refuses too.
"""

# What is missing, and what happens instead.
NOT_BUILT = (
    (
        "SASL GSSAPI",
        "its settings are refused at start",
    ),
    (
        "authorizers other than `StandardAuthorizer`",
        "refused at start: Java plug-ins cannot be loaded",
    ),
    (
        "altering passwords and security settings of single listeners",
        "refused with INVALID_REQUEST: they are read from the file, at SIGHUP and by `mpbroker ctl reload`, "
        "too. Which others can be altered stands below",
    ),
    ("replication, tiered storage", "one replica; see below for what asks for more"),
    ("JMX", "the same metrics over HTTP for Prometheus, or `mpbroker ctl metrics --json`"),
    (
        "Spark: continuous and real-time mode",
        "Spark does not offer them to Python sources: micro-batches, which are woken when records come",
    ),
)

DYNAMIC_SETTINGS = """
## Settings of the broker that clients may alter

By AlterConfigs and IncrementalAlterConfigs, of one broker or of all (OPERATING.md, "Changing settings"). So
are `max.connections` and `max.connection.creation.rate` of single listeners (`listener.name.<listener>.`).
Kafka's other dynamic settings are taken, kept and shown without effect, as the list says; so are names that
neither Kafka nor this broker has, since Kafka leaves them to plug-ins. DescribeConfigs shows all of Kafka's
settings, and the documentation of one without effect says so. All others are read-only, security settings of
single listeners and passwords among them: they are read from the file.

"""

CLOSING = """
A listener without certificate, users or keys is refused at start. A configuration key that is known to Kafka
and has no effect here is named in a warning at start, and so is an unknown one in a file, unless it looks
like a misspelt one that has an effect here.

## Where it differs from Kafka on purpose

* The high watermark is what is on disk, not what is in the page cache (`log.flush.policy=group`);
  `log.flush.policy=os` is Kafka's behaviour. ListOffsets and DeleteRecords wait for the sync under way if
  their answer depends on it: REQUEST_TIMED_OUT after the request's timeout, or after 30 s without one.
* A topic asked for with a replication factor above 1 is refused with INVALID_REPLICATION_FACTOR;
  `mpbroker.replication.factor.clamp=true` creates it with one replica.
* `min.insync.replicas` above 1 is refused, for the broker at start and for a topic with INVALID_CONFIG: there
  is one replica, and Kafka would answer every write with NOT_ENOUGH_REPLICAS. With
  `mpbroker.replication.factor.clamp=true` it is taken, shown, and met by the one replica.
* The broker's loggers are `root`, `kafka.request.logger` and those of its own parts, such as
  `mpbroker.coordinator.groups`, not Kafka's classes; DescribeConfigs lists them. A part inherits the level of
  the one above it. What Kafka's `kafka.authorizer.logger` says is in the audit log, whose level is a setting
  (`audit.log.level`).
* Where `admin.listener.names` is set, requests of administration get CLUSTER_AUTHORIZATION_FAILED on other
  listeners. Kafka has no such setting.
* Owners of delegation tokens are users. Kafka makes tokens for owners of any type, and lets them log in as
  users of that name. A token cannot be used from the moment when it expires, not only once it is removed.
* Settings of groups and of subscriptions to client metrics are taken, checked, kept, listed and described,
  without effect yet: Kafka's are those of the consumer, share and streams protocols, and no client can push
  its metrics here.
* `flush.ms` and `flush.messages` have the segment itself synced under both values of `log.flush.policy`;
  under `group` the commit journal makes every record durable before. acks=all waits for a sync that
  `flush.messages` made due, acks=1 does not; `flush.ms` is looked at twice a second, whatever
  `log.flush.scheduler.interval.ms` says.
* InitProducerId with an epoch that is refused aborts nothing. Kafka aborts the open transaction before it
  looks at the epoch, so that a late copy of a request ends the transaction of the producer that has begun
  since.
* AddPartitionsToTxn is served as clients send it: versions 4 and 5 are for brokers that ask each other.
* Internal topics take records from nobody. Kafka takes them from a client that calls itself `__admin_client`.
* A record batch whose compressed records cannot be read is answered INVALID_RECORD, not with a retriable
  error. Bytes after an lz4 frame are such an error, which Kafka ignores; the frame's content checksum is
  checked.
* Bytes of a string that are no UTF-8 are read as U+FFFD, as in Kafka. A string that takes more than 32,767
  bytes with them closes the connection: it could not be written. A surrogate that is encoded as a character
  of its own becomes three U+FFFD; Java makes one of it.
* A response names at most 100 refused records of a batch, with the number of all; Kafka names each.
"""


def page() -> str:
    rows = []
    for api in all_apis().values():
        kafka = valid_versions(api.key)
        served = f"{api.oldest}-{api.latest}" if api.oldest != api.latest else str(api.oldest)
        rows.append(f"| {int(api.key)} | {api.name} | {served} | {kafka[0]}-{kafka[-1]} | {api.summary} |")
    missing = [f"| {what} | {instead} |" for what, instead in NOT_BUILT]
    table = ["## Not built yet", "", "| what | what happens instead |", "|---|---|", *missing]
    head = INTRODUCTION + "\n".join(rows) + "\n" + TESTED + "\n"
    missing_apis = "\n" + not_served.table()
    return head + "\n".join(table) + "\n" + missing_apis + DYNAMIC_SETTINGS + _dynamic() + CLOSING


def _dynamic() -> str:
    keys = sorted(DYNAMIC)
    return "".join(f"* `{key}`\n" for key in keys) + "".join(
        f"* `{key}`: kept and shown, without effect\n" for key in sorted(IDLE)
    )


if __name__ == "__main__":
    PAGE.write_text(page())
