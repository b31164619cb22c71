"""Metrics of the network layer (Kafka: SocketServer, Processor, Selector, RequestChannel)."""

from __future__ import annotations

from collections.abc import Iterator

from mpbroker.ipc.counters import Counter, Histogram
from mpbroker.ipc.topology import CONTROL_PROCESSOR, FIRST_PROCESSOR, PROCESSORS
from mpbroker.metrics.families import Bean, View, family, value

DATA_PROCESSORS = tuple(p for p in PROCESSORS if p != CONTROL_PROCESSOR)
SOCKET_SERVER = "kafka.network:type=SocketServer,name="
REQUEST_CHANNEL = "kafka.network:type=RequestChannel,name="
SELECTOR = "kafka.server:type=socket-server-metrics"
PLANES = (("", DATA_PROCESSORS), ("ControlPlane", (CONTROL_PROCESSOR,)))


def selector(process: int) -> str:
    return f"{SELECTOR},networkProcessor={process - FIRST_PROCESSOR}"


@family(
    SOCKET_SERVER + "NetworkProcessorAvgIdlePercent",
    "gauge",
    "Mean over the data plane's processors of the part of their time that they sleep; 1 without processors.",
)
def average_idle(view: View) -> Iterator[Bean]:
    shares = [view.share(Counter.COUNT_IDLE_NS, p) for p in view.now.serving(DATA_PROCESSORS)]
    yield value(
        SOCKET_SERVER + "NetworkProcessorAvgIdlePercent", sum(shares) / len(shares) if shares else 1.0
    )


@family(
    SOCKET_SERVER + "ControlPlaneNetworkProcessorAvgIdlePercent",
    "gauge",
    "The same of the control plane's processor; not there without a control plane (Kafka: NaN).",
)
def control_plane_idle(view: View) -> Iterator[Bean]:
    for process in view.now.serving((CONTROL_PROCESSOR,)):
        name = SOCKET_SERVER + "ControlPlaneNetworkProcessorAvgIdlePercent"
        yield value(name, view.share(Counter.COUNT_IDLE_NS, process))


@family(
    SOCKET_SERVER + "MemoryPool<Available|Used>",
    "gauge",
    "Bytes of the processors' request arenas: available to requests, and used by them.",
)
def memory_pool(view: View) -> Iterator[Bean]:
    serving = view.now.serving(PROCESSORS)
    used = view.total(Counter.COUNT_ARENA_BYTES, serving)
    yield value(SOCKET_SERVER + "MemoryPoolUsed", used)
    yield value(
        SOCKET_SERVER + "MemoryPoolAvailable", view.total(Counter.COUNT_ARENA_LIMIT_BYTES, serving) - used
    )


@family(
    SELECTOR,
    "gauge, total (ms)",
    "How long memory for requests was being refused.",
    ("MemoryPoolAvgDepletedPercent", "MemoryPoolDepletedTimeTotal"),
)
def memory_depleted(view: View) -> Iterator[Bean]:
    serving = view.now.serving(PROCESSORS)
    shares = [view.share(Counter.COUNT_MEMORY_DEPLETED_NS, p) for p in serving]
    total_ns = view.total(Counter.COUNT_MEMORY_DEPLETED_NS, PROCESSORS)
    depleted = {
        "MemoryPoolAvgDepletedPercent": sum(shares) / len(shares) if shares else 0.0,
        "MemoryPoolDepletedTimeTotal": total_ns / 1e6,
    }
    yield Bean(SELECTOR, depleted)


@family(
    SOCKET_SERVER + "[ControlPlane]ExpiredConnectionsKilledCount",
    "gauge",
    "Connections closed because their authentication had expired.",
)
def expired_killed(view: View) -> Iterator[Bean]:
    for prefix, processors in PLANES:
        if view.now.serving(processors):
            name = f"{SOCKET_SERVER}{prefix}ExpiredConnectionsKilledCount"
            yield value(name, view.total(Counter.COUNT_EXPIRED_KILLED, processors))


@family(
    "kafka.network:type=Processor,name=IdlePercent,networkProcessor=<id>",
    "gauge",
    "The part of its time that a processor sleeps.",
)
def processor_idle(view: View) -> Iterator[Bean]:
    for process in view.now.serving(PROCESSORS):
        name = f"kafka.network:type=Processor,name=IdlePercent,networkProcessor={process - FIRST_PROCESSOR}"
        yield value(name, view.share(Counter.COUNT_IDLE_NS, process))


# Kafka's attribute, without -total and -rate, and its counters. As in Kafka these are a client's view: a
# broker's "requests" are the responses it sends.
PAIRS = {
    "connection-creation": (Counter.COUNT_CONNECTIONS_CREATED,),
    "connection-close": (Counter.COUNT_CONNECTIONS_CLOSED,),
    "successful-authentication": (Counter.COUNT_AUTHENTICATIONS,),
    "failed-authentication": (Counter.COUNT_AUTHENTICATIONS_FAILED,),
    "successful-reauthentication": (Counter.COUNT_REAUTHENTICATIONS,),
    "failed-reauthentication": (Counter.COUNT_REAUTHENTICATIONS_FAILED,),
    "network-io": (Counter.COUNT_READS, Counter.COUNT_WRITES),
    "incoming-byte": (Counter.COUNT_BYTES_IN,),
    "outgoing-byte": (Counter.COUNT_BYTES_OUT,),
    "request": (Counter.COUNT_RESPONSES,),
    "response": (Counter.COUNT_REQUESTS,),
    "select": (Counter.COUNT_WAKEUPS,),
}


@family(
    SELECTOR + ",networkProcessor=<id>",
    "total, rate",
    "From a client's view, as in Kafka: `request` counts responses sent, `response` requests received; "
    "network-io counts system calls.",
    [f"{what}-{kind}" for what in PAIRS for kind in ("total", "rate")],
)
def selector_pairs(view: View) -> Iterator[Bean]:
    for process in view.now.serving(PROCESSORS):
        found: dict[str, float] = {}
        for what, counters in PAIRS.items():
            total = sum(view.now.get(process, c) for c in counters)
            found[f"{what}-total"] = total
            if view.before is not None and view.seconds > 0:
                earlier = sum(view.before.get(process, c) for c in counters)
                found[f"{what}-rate"] = max(total - earlier, 0) / view.seconds
        yield Bean(selector(process), found)


GAUGES = (
    "connection-count",
    "request-size-avg",
    "request-size-max",
    "io-wait-ratio",
    "io-wait-time-ns-total",
    "io-wait-time-ns-avg",
    "io-waittime-total",
    "io-ratio",
    "io-time-ns-total",
    "io-time-ns-avg",
    "iotime-total",
    "reauthentication-latency-avg",
    "reauthentication-latency-max",
    "successful-authentication-no-reauth-total",
    "expired-connections-killed-count",
)


@family(
    SELECTOR + ",networkProcessor=<id>",
    "gauge, total",
    "Sizes are of responses, with their size field; io-wait is time asleep, io the rest (io-waittime and "
    "iotime are Kafka's older names); latencies are in ms; killed are connections whose authentication had "
    "expired.",
    GAUGES,
)
def selector_gauges(view: View) -> Iterator[Bean]:
    for process in view.now.serving(PROCESSORS):
        now = view.now.counters[process]
        created, closed = now[Counter.COUNT_CONNECTIONS_CREATED], now[Counter.COUNT_CONNECTIONS_CLOSED]
        waited_ns, selects = now[Counter.COUNT_IDLE_NS], max(now[Counter.COUNT_WAKEUPS], 1)
        # Count up to its last heartbeat: a sleep is counted when it is over.
        seen_ns = min(view.now.heartbeats_ns[process], view.now.now_ns)
        worked_ns = max(seen_ns - now[Counter.COUNT_STARTED_NS] - waited_ns, 0)
        ratio = view.share(Counter.COUNT_IDLE_NS, process)
        again = view.now.distributions[process][Histogram.TIME_REAUTHENTICATION_NS]
        found = {
            "connection-count": created - closed,
            "request-size-avg": now[Counter.COUNT_BYTES_OUT] / max(now[Counter.COUNT_RESPONSES], 1),
            "request-size-max": now[Counter.COUNT_RESPONSE_BYTES_MAX],
            "io-wait-ratio": ratio,
            "io-wait-time-ns-total": waited_ns,
            "io-wait-time-ns-avg": waited_ns / selects,
            "io-waittime-total": waited_ns,
            "io-ratio": 1 - ratio,
            "io-time-ns-total": worked_ns,
            "iotime-total": worked_ns,
            "io-time-ns-avg": worked_ns / selects,
            "reauthentication-latency-avg": again.total / max(again.count, 1) / 1e6,
            "reauthentication-latency-max": again.largest / 1e6,
            "successful-authentication-no-reauth-total": now[Counter.COUNT_AUTHENTICATIONS_NO_REAUTH],
            "expired-connections-killed-count": now[Counter.COUNT_EXPIRED_KILLED],
        }
        yield Bean(selector(process), found)


@family(
    SELECTOR + ",networkProcessor=<id>,clientSoftwareName=<name>,clientSoftwareVersion=<version>",
    "gauge",
    "Open connections by the software that ApiVersions named; `unknown` before and without. At most 128 "
    "kinds for each processor (Kafka: 100), the first that came: clients that make up names can fill them, "
    "and other kinds are not shown then until the broker is restarted.",
    ("connections",),
)
def software(view: View) -> Iterator[Bean]:
    for process in view.now.serving(PROCESSORS):
        for name, version, connections, _ in view.now.clients.get(process, []):
            tags = f"clientSoftwareName={name},clientSoftwareVersion={version}"
            yield Bean(f"{selector(process)},{tags}", {"connections": connections})


@family(
    SELECTOR + ",networkProcessor=<id>,cipher=<cipher>,protocol=<protocol>",
    "gauge",
    "Open TLS connections by cipher suite, as IANA calls it, and protocol.",
    ("connections",),
)
def ciphers(view: View) -> Iterator[Bean]:
    for process in view.now.serving(PROCESSORS):
        for cipher, protocol, connections, _ in view.now.ciphers.get(process, []):
            tags = f"cipher={cipher},protocol={protocol}"
            yield Bean(f"{selector(process)},{tags}", {"connections": connections})


@family(
    REQUEST_CHANNEL + "[ControlPlane]RequestQueueSize",
    "gauge",
    "Requests that wait for a handler, in the processors' queues.",
)
def request_queue(view: View) -> Iterator[Bean]:
    for prefix, processors in PLANES:
        if serving := view.now.serving(processors):
            name = f"{REQUEST_CHANNEL}{prefix}RequestQueueSize"
            yield value(name, view.total(Counter.COUNT_QUEUED_REQUESTS, serving))


@family(
    REQUEST_CHANNEL + "[ControlPlane]ResponseQueueSize[,processor=<id>]",
    "gauge",
    "Answers that a processor found when it looked last.",
)
def response_queue(view: View) -> Iterator[Bean]:
    for prefix, processors in PLANES:
        if serving := view.now.serving(processors):
            name = f"{REQUEST_CHANNEL}{prefix}ResponseQueueSize"
            yield value(name, view.total(Counter.COUNT_RESPONSES_WAITING, serving))
            for process in serving:
                waiting = view.now.get(process, Counter.COUNT_RESPONSES_WAITING)
                yield value(f"{name},processor={process - FIRST_PROCESSOR}", waiting)
