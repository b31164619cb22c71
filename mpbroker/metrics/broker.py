"""Metrics of the handlers, topics and purgatories, and metrics that Kafka does not have.

(Kafka: KafkaRequestHandler.scala, BrokerTopicMetrics.java, DelayedOperation.scala.)
"""

from __future__ import annotations

from collections.abc import Iterator

from mpbroker.ipc.counters import Counter, Histogram
from mpbroker.ipc.meters import QuotaWord, TopicMeter
from mpbroker.ipc.topology import (
    CONTROL_HANDLER,
    COORDINATOR,
    HANDLERS,
    LOG_WORKERS,
    PROCESSES,
    SCRUBBER,
    SUPERVISOR,
    name_of,
)
from mpbroker.metrics.families import Bean, View, family, value

HANDLER_POOL = "kafka.server:type=KafkaRequestHandlerPool,name="
TOPICS = "kafka.server:type=BrokerTopicMetrics,name="
PURGATORY = "kafka.server:type=DelayedOperationPurgatory,name="
OURS = "mpbroker:type="
DATA_HANDLERS = tuple(h for h in HANDLERS if h != CONTROL_HANDLER)


@family(
    HANDLER_POOL + "[ControlPlane]RequestHandlerAvgIdlePercent",
    "gauge",
    "Mean over the handlers of the part of their time that they sleep.",
)
def handler_idle(view: View) -> Iterator[Bean]:
    for prefix, handlers in (("", DATA_HANDLERS), ("ControlPlane", (CONTROL_HANDLER,))):
        if shares := [view.share(Counter.COUNT_IDLE_NS, h) for h in view.now.serving(handlers)]:
            yield value(f"{HANDLER_POOL}{prefix}RequestHandlerAvgIdlePercent", sum(shares) / len(shares))


METER_NAMES = {
    TopicMeter.MESSAGES_IN: "MessagesInPerSec",
    TopicMeter.BYTES_IN: "BytesInPerSec",
    TopicMeter.BYTES_OUT: "BytesOutPerSec",
    TopicMeter.BYTES_REJECTED: "BytesRejectedPerSec",
    TopicMeter.FAILED_PRODUCE: "FailedProduceRequestsPerSec",
    TopicMeter.FAILED_FETCH: "FailedFetchRequestsPerSec",
    TopicMeter.TOTAL_PRODUCE: "TotalProduceRequestsPerSec",
    TopicMeter.TOTAL_FETCH: "TotalFetchRequestsPerSec",
    TopicMeter.PRODUCE_CONVERSIONS: "ProduceMessageConversionsPerSec",
    TopicMeter.FETCH_CONVERSIONS: "FetchMessageConversionsPerSec",
    TopicMeter.NO_KEY_COMPACTED: "NoKeyCompactedTopicRecordsPerSec",
    TopicMeter.INVALID_MAGIC: "InvalidMagicNumberRecordsPerSec",
    TopicMeter.INVALID_CRC: "InvalidMessageCrcRecordsPerSec",
    TopicMeter.INVALID_OFFSET_OR_SEQUENCE: "InvalidOffsetOrSequenceRecordsPerSec",
}
# No broker replicates from this one.
REPLICATION = (
    "ReplicationBytesInPerSec",
    "ReplicationBytesOutPerSec",
    "ReassignmentBytesInPerSec",
    "ReassignmentBytesOutPerSec",
)


@family(
    TOPICS + f"<{'|'.join(METER_NAMES.values())}>",
    "meter",
    "Of all topics together. Total and failed requests count once for each partition, as in Kafka; bytes in "
    "are as stored; batches sent twice by an idempotent producer count in neither messages nor bytes.",
)
def all_topics(view: View) -> Iterator[Bean]:
    for meter, name in METER_NAMES.items():
        earlier = view.before.all_topics[meter] if view.before is not None else None
        yield Bean(TOPICS + name, view.rates(view.now.all_topics[meter], earlier))


@family(TOPICS + "<the same>,topic=<topic>", "meter", "Of one topic, from its first count to its deletion.")
def per_topic(view: View) -> Iterator[Bean]:
    for topic, counts in sorted(view.now.topics.items()):
        before = None
        if view.before is not None:
            before = view.before.topics.get(topic, [0] * TopicMeter.TOPIC_METERS)
        for meter, name in METER_NAMES.items():
            if counts[meter]:
                earlier = before[meter] if before is not None else None
                yield Bean(f"{TOPICS}{name},topic={topic}", view.rates(counts[meter], earlier))


@family(TOPICS + f"<{'|'.join(REPLICATION)}>", "meter", "Always 0: there are no replicas.")
def replication(view: View) -> Iterator[Bean]:
    for name in REPLICATION:
        yield Bean(TOPICS + name, view.rates(0, 0))


# The counters of PurgatorySize and NumDelayedOperations, and the processes that have them.
PURGATORIES: dict[str, tuple[Counter, Counter, tuple[int, ...]]] = {
    "Produce": (Counter.COUNT_PRODUCES_DELAYED, Counter.COUNT_PRODUCES_DELAYED, LOG_WORKERS),
    "Fetch": (Counter.COUNT_FETCHES_WATCHED, Counter.COUNT_FETCHES_DELAYED, HANDLERS),
    "Rebalance": (Counter.COUNT_REBALANCES_DELAYED, Counter.COUNT_REBALANCES_DELAYED, (COORDINATOR,)),
    "Heartbeat": (Counter.COUNT_HEARTBEATS_DELAYED, Counter.COUNT_HEARTBEATS_DELAYED, (COORDINATOR,)),
    "topic": (Counter.COUNT_CALLS_DELAYED, Counter.COUNT_CALLS_DELAYED, HANDLERS),
}


@family(
    PURGATORY + f"<PurgatorySize|NumDelayedOperations>,delayedOperation=<{'|'.join(PURGATORIES)}>",
    "gauge",
    "Fetch: partitions waited for, and fetches that wait, with requests about a log end that is not durable. "
    "Produce: requests that wait for their commit round. Rebalance: groups that wait for members to join or "
    "for an assignment. Heartbeat: members whose heartbeats are awaited. "
    "topic: requests that wait for the coordinator, of topics and of groups.",
)
def purgatories(view: View) -> Iterator[Bean]:
    for operation, (size, waiting, where) in PURGATORIES.items():
        serving = view.now.serving(where)
        yield value(f"{PURGATORY}PurgatorySize,delayedOperation={operation}", view.total(size, serving))
        yield value(
            f"{PURGATORY}NumDelayedOperations,delayedOperation={operation}", view.total(waiting, serving)
        )


@family(
    "kafka.server:type=<DelayedFetchMetrics,name=ExpiresPerSec,fetcherType=consumer"
    "|DelayedProduceMetrics,name=ExpiresPerSec>",
    "meter",
    "Fetches answered because their time was up, produce requests that timed out.",
)
def expirations(view: View) -> Iterator[Bean]:
    fetch = "kafka.server:type=DelayedFetchMetrics,name=ExpiresPerSec,fetcherType=consumer"
    yield view.meter(fetch, Counter.COUNT_FETCHES_EXPIRED, HANDLERS)
    produce = "kafka.server:type=DelayedProduceMetrics,name=ExpiresPerSec"
    yield view.meter(produce, Counter.COUNT_PRODUCES_EXPIRED, LOG_WORKERS)


GROUPS = "kafka.server:type=group-coordinator-metrics"
# Groups of the consumer protocol by state. A group that is deleted is not there any more.
GROUP_STATES = {
    "Empty": Counter.COUNT_GROUPS_EMPTY,
    "Assigning": Counter.COUNT_GROUPS_ASSIGNING,
    "Reconciling": Counter.COUNT_GROUPS_RECONCILING,
    "Stable": Counter.COUNT_GROUPS_STABLE,
}


@family(
    GROUPS + ",protocol=<classic|consumer>",
    "gauge",
    "Groups by protocol, counted every five seconds. A group that has only committed offsets is classic.",
    ("group-count",),
)
def groups_by_protocol(view: View) -> Iterator[Bean]:
    found = {
        "classic": view.now.get(COORDINATOR, Counter.COUNT_CLASSIC_GROUPS),
        "consumer": sum(view.now.get(COORDINATOR, counter) for counter in GROUP_STATES.values()),
    }
    for protocol, count in found.items():
        yield Bean(f"{GROUPS},protocol={protocol}", {"group-count": count})


@family(
    GROUPS + f",state=<{'|'.join(GROUP_STATES)}>",
    "gauge",
    "Groups of the consumer protocol by state.",
    ("consumer-group-count",),
)
def groups_by_state(view: View) -> Iterator[Bean]:
    for state, counter in GROUP_STATES.items():
        count = view.now.get(COORDINATOR, counter)
        yield Bean(f"{GROUPS},state={state}", {"consumer-group-count": count})


@family(
    GROUPS,
    "meter",
    "Rebalances of groups of the consumer protocol: epochs that began because a member's subscription, or "
    "the topics subscribed to, changed. As in Kafka, a member that leaves or is removed does not count.",
    ("consumer-group-rebalance-count", "consumer-group-rebalance-rate"),
)
def group_rebalances(view: View) -> Iterator[Bean]:
    rates = view.meter(GROUPS, Counter.COUNT_GROUP_REBALANCES, (COORDINATOR,)).attributes
    rate = rates.get("IntervalRate", rates["MeanRate"])
    found = {"consumer-group-rebalance-count": rates["Count"], "consumer-group-rebalance-rate": rate}
    yield Bean(GROUPS, found)


FETCH_SESSIONS = {
    "NumIncrementalFetchSessions": Counter.COUNT_FETCH_SESSIONS,
    "NumIncrementalFetchPartitionsCached": Counter.COUNT_FETCH_SESSION_PARTITIONS,
}


@family(
    f"kafka.server:type=FetchSessionCache,name=<{'|'.join(FETCH_SESSIONS)}>",
    "gauge",
    "Fetch sessions that handlers keep, and the partitions in them.",
)
def fetch_sessions(view: View) -> Iterator[Bean]:
    for name, counter in FETCH_SESSIONS.items():
        total = view.total(counter, view.now.serving(HANDLERS))
        yield value(f"kafka.server:type=FetchSessionCache,name={name}", total)


@family(
    "kafka.server:type=FetchSessionCache,name=IncrementalFetchSessionEvictionsPerSec",
    "meter",
    "Sessions that had to make room for others.",
)
def fetch_session_evictions(view: View) -> Iterator[Bean]:
    name = "kafka.server:type=FetchSessionCache,name=IncrementalFetchSessionEvictionsPerSec"
    yield view.meter(name, Counter.COUNT_FETCH_SESSIONS_EVICTED, HANDLERS)


@family(
    "kafka.log:type=LogFlushStats,name=LogFlushRateAndTimeMs",
    "histogram (ms)",
    "Commit rounds: what waits is synced to disk together.",
)
def flushes(view: View) -> Iterator[Bean]:
    shown = view.now.distribution(Histogram.TIME_COMMIT_NS, LOG_WORKERS)
    yield Bean("kafka.log:type=LogFlushStats,name=LogFlushRateAndTimeMs", shown.attributes(1e6))


@family(
    "kafka.server:type=ReplicaManager,name=<PartitionCount|LeaderCount>",
    "gauge",
    "Partitions of this broker, which leads them all.",
)
def partitions(view: View) -> Iterator[Bean]:
    for name in ("PartitionCount", "LeaderCount"):
        count = view.total(Counter.COUNT_PARTITIONS, LOG_WORKERS)
        yield value(f"kafka.server:type=ReplicaManager,name={name}", count)


@family(
    "kafka.server:type=ReplicaManager,name=OfflineReplicaCount",
    "gauge",
    "Partitions without a leader: damaged, in a log directory that has failed, or new ones that cannot be "
    "opened yet, as on a full disk. The log names them.",
)
def offline_replicas(view: View) -> Iterator[Bean]:
    yield value("kafka.server:type=ReplicaManager,name=OfflineReplicaCount", view.now.partitions.offline)


@family(
    "kafka.controller:type=KafkaController,name=OfflinePartitionsCount",
    "gauge",
    "The same, as Kafka's controller counts them: no other broker has a replica.",
)
def offline_partitions(view: View) -> Iterator[Bean]:
    yield value(
        "kafka.controller:type=KafkaController,name=OfflinePartitionsCount", view.now.partitions.offline
    )


@family(
    "kafka.controller:type=KafkaController,name=<GlobalTopicCount|GlobalPartitionCount>",
    "gauge",
    "Topics and partitions that the coordinator knows.",
)
def all_metadata(view: View) -> Iterator[Bean]:
    for name, counter in (
        ("GlobalTopicCount", Counter.COUNT_TOPICS),
        ("GlobalPartitionCount", Counter.COUNT_PARTITIONS),
    ):
        yield value(f"kafka.controller:type=KafkaController,name={name}", view.now.get(COORDINATOR, counter))


# Counters of each process, by the attribute's name.
PER_PROCESS = {
    "turns-total": Counter.COUNT_WAKEUPS,
    "requests-total": Counter.COUNT_REQUESTS,
    "errors-total": Counter.COUNT_ERRORS,
    "ring-full-total": Counter.COUNT_RING_FULL,
    "memory-full-total": Counter.COUNT_MEMORY_FULL,
    "idle-time-ns-total": Counter.COUNT_IDLE_NS,
    "arena-bytes": Counter.COUNT_ARENA_BYTES,
    "fences-total": Counter.COUNT_FENCES,
}


@family(
    OURS + "Process,name=<role>",
    "total, gauge",
    "Of each process. Heartbeats are published at every turn, at least once a second.",
    (*PER_PROCESS, "heartbeat-age-ms"),
)
def processes(view: View) -> Iterator[Bean]:
    for process in view.now.serving(range(PROCESSES)):
        found: dict[str, float] = {
            name: view.now.get(process, counter) for name, counter in PER_PROCESS.items()
        }
        # The beat may be read before or after the clock, so the difference can be negative.
        found["heartbeat-age-ms"] = max(view.now.now_ns - view.now.heartbeats_ns[process], 0) / 1e6
        yield Bean(f"{OURS}Process,name={name_of(process)}", found)


@family(
    OURS + "RequestsPerTurn,name=<role>",
    "histogram (requests)",
    "How many a handler took in one turn, and jobs that a log worker did in one round.",
)
def turns(view: View) -> Iterator[Bean]:
    for process in view.now.serving((*LOG_WORKERS, *HANDLERS)):
        taken = view.now.distributions[process][Histogram.REQUESTS_PER_TURN]
        yield Bean(f"{OURS}RequestsPerTurn,name={name_of(process)}", taken.attributes(1))


SERVED = {
    "produce-native-total": Counter.COUNT_PRODUCE_FAST,
    "produce-python-total": Counter.COUNT_PRODUCE_SLOW,
    "fetch-total": Counter.COUNT_FETCHES,
    "fetch-native-total": Counter.COUNT_FETCHES_FAST,
    "fetch-parked-total": Counter.COUNT_FETCHES_PARKED,
    "fetch-incremental-total": Counter.COUNT_FETCHES_INCREMENTAL,
    "cold-reads-total": Counter.COUNT_FETCHES_COLD,
}


@family(
    OURS + "Handlers",
    "total",
    "How handlers served produce and fetch requests: in native code, in Python; fetches that "
    "waited, and those that went on with a session; what fetches had read from the disk.",
    SERVED,
)
def served(view: View) -> Iterator[Bean]:
    yield Bean(f"{OURS}Handlers", {name: view.total(counter, HANDLERS) for name, counter in SERVED.items()})


LOG_TOTALS = {
    "batches-total": Counter.COUNT_BATCHES_APPENDED,
    "records-total": Counter.COUNT_RECORDS_APPENDED,
    "bytes-total": Counter.COUNT_BYTES_APPENDED,
    "duplicates-total": Counter.COUNT_DUPLICATES,
    "commit-rounds-total": Counter.COUNT_COMMIT_ROUNDS,
    "segments-rolled-total": Counter.COUNT_SEGMENTS_ROLLED,
    "unshipped-refused-total": Counter.COUNT_UNSHIPPED_REFUSED,
}


@family(OURS + "Log", "total", "What the log workers have done, all together.", LOG_TOTALS)
def log_process(view: View) -> Iterator[Bean]:
    totals = {name: float(view.total(counter, LOG_WORKERS)) for name, counter in LOG_TOTALS.items()}
    yield Bean(f"{OURS}Log", totals)


@family(
    OURS + "Log,name=<BatchesPerRound|AppendTimeMs>",
    "histogram (batches, ms)",
    "Of the log workers' rounds: batches that were written together, and the time that it took.",
)
def rounds(view: View) -> Iterator[Bean]:
    batches = view.now.distribution(Histogram.BATCHES_PER_ROUND, LOG_WORKERS)
    yield Bean(f"{OURS}Log,name=BatchesPerRound", batches.attributes(1))
    appends = view.now.distribution(Histogram.TIME_APPEND_NS, LOG_WORKERS)
    yield Bean(f"{OURS}Log,name=AppendTimeMs", appends.attributes(1e6))


@family(
    OURS + "Broker",
    "gauge, total",
    "Restarts are of children; lost are pages of counters for which the tmpfs had no room; unmeasured are "
    "requests that no quota limited, because too many clients with quotas were active at once.",
    ("uptime-s", "restarts-total", "lost-pages-total", "unmeasured-requests-total"),
)
def whole(view: View) -> Iterator[Bean]:
    found = {
        "uptime-s": view.now.uptime_s,
        "restarts-total": view.now.get(SUPERVISOR, Counter.COUNT_RESTARTS),
        "lost-pages-total": view.now.lost,
        "unmeasured-requests-total": sum(words[QuotaWord.QUOTA_UNMEASURED] for words in view.now.quotas),
    }
    yield Bean(f"{OURS}Broker", found)


SCRUBBER_BEANS = OURS + "Scrubber,name="


@family(
    SCRUBBER_BEANS + "<BytesPerSec|BatchesPerSec>",
    "meter",
    "What the scrubber has read of sealed segments, and the whole batches among it.",
)
def scrubbed(view: View) -> Iterator[Bean]:
    yield view.meter(SCRUBBER_BEANS + "BytesPerSec", Counter.COUNT_SCRUB_BYTES, (SCRUBBER,))
    yield view.meter(SCRUBBER_BEANS + "BatchesPerSec", Counter.COUNT_SCRUB_BATCHES, (SCRUBBER,))


@family(
    SCRUBBER_BEANS + "<DamagedRanges|PassesEnded|LastPassEndedMs|PassRemainingBytes>",
    "gauge",
    "Damaged ranges there are now, whose offsets are answered with CORRUPT_MESSAGE; log directories that "
    "were scrubbed to their end since the broker began, when the last one was (Unix time, 0: not yet), and "
    "the remaining bytes of the one that is being scrubbed.",
)
def scrub_findings(view: View) -> Iterator[Bean]:
    def get(counter: Counter) -> float:
        return view.now.get(SCRUBBER, counter)

    left = get(Counter.COUNT_SCRUB_PASS_TOTAL) - get(Counter.COUNT_SCRUB_PASS_BYTES)
    yield value(SCRUBBER_BEANS + "DamagedRanges", get(Counter.COUNT_SCRUB_FINDINGS))
    yield value(SCRUBBER_BEANS + "PassesEnded", get(Counter.COUNT_SCRUB_PASSES))
    yield value(SCRUBBER_BEANS + "LastPassEndedMs", get(Counter.COUNT_SCRUB_PASS_ENDED_MS))
    yield value(SCRUBBER_BEANS + "PassRemainingBytes", max(left, 0))
