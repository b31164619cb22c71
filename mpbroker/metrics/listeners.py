"""Metrics of listeners: connections and their delays (Kafka: Acceptor, ConnectionQuotas)."""

from __future__ import annotations

from collections.abc import Iterator

from mpbroker.ipc.listeners import ListenerCount
from mpbroker.metrics.families import Bean, View, family
from mpbroker.metrics.network import SELECTOR
from mpbroker.metrics.snapshot import NS, ListenerSeen

BLOCKED = "kafka.network:type=Acceptor,name="


def seen(view: View) -> Iterator[tuple[ListenerSeen, ListenerSeen | None]]:
    """Yield each listener as it is now and as it was in the earlier snapshot, None if it was not there."""
    for number, listener in sorted(view.now.listeners.items()):
        yield listener, view.before.listeners.get(number) if view.before is not None else None


@family(
    BLOCKED + "[ControlPlane]AcceptorBlockedPercent,listener=<listener>",
    "meter",
    "How long accepted connections waited for a slot, for their rate, or for a processor with room: Count in "
    "ns, rates as the part of the time.",
)
def blocked(view: View) -> Iterator[Bean]:
    for listener, before in seen(view):
        earlier = before.counts[ListenerCount.BLOCKED_NS] if before is not None else None
        rates = view.rates(listener.counts[ListenerCount.BLOCKED_NS], earlier)
        shown = {name: rate if name == "Count" else rate / NS for name, rate in rates.items()}
        prefix = "ControlPlane" if listener.counts[ListenerCount.CONTROL_PLANE] else ""
        yield Bean(f"{BLOCKED}{prefix}AcceptorBlockedPercent,listener={listener.name}", shown)


@family(
    SELECTOR,
    "gauge",
    "Connections accepted per second, of all listeners, over the quota window.",
    ("broker-connection-accept-rate",),
)
def broker_rate(view: View) -> Iterator[Bean]:
    # Each plane's acceptor measures its own rate, and publishes it with all of its listeners.
    of_planes: dict[int, int] = {}
    for listener, _ in seen(view):
        of_planes[listener.counts[ListenerCount.CONTROL_PLANE]] = listener.counts[
            ListenerCount.BROKER_RATE_MILLI
        ]
    yield Bean(SELECTOR, {"broker-connection-accept-rate": sum(of_planes.values()) / 1000})


DELAYS = {
    "connection-accept-throttle-time": (ListenerCount.THROTTLED_MS, ListenerCount.THROTTLED),
    "ip-connection-accept-throttle-time": (ListenerCount.THROTTLED_IP_MS, ListenerCount.THROTTLED_IP),
}


@family(
    SELECTOR + ",listener=<listener>",
    "gauge",
    "Connections accepted per second, over the quota window; means of the delays in ms, of connections that "
    "were delayed.",
    ("connection-accept-rate", *DELAYS),
)
def rates(view: View) -> Iterator[Bean]:
    for listener, before in seen(view):
        found = {"connection-accept-rate": listener.counts[ListenerCount.RATE_MILLI] / 1000}
        for name, (total, count) in DELAYS.items():
            earlier = (before.counts[total], before.counts[count]) if before is not None else None
            found[name] = view.average(listener.counts[total], listener.counts[count], earlier)
        yield Bean(f"{SELECTOR},listener={listener.name}", found)


OURS = {
    "connections": ListenerCount.OPEN,
    "accepted-total": ListenerCount.ACCEPTED,
    "refused-per-ip-total": ListenerCount.REFUSED_PER_IP,
    "throttled-total": ListenerCount.THROTTLED,
    "throttled-per-ip-total": ListenerCount.THROTTLED_IP,
    "accept-errors-total": ListenerCount.ACCEPT_ERRORS,
}


@family(
    "mpbroker:type=Listener,name=<listener>",
    "gauge, total",
    "Connections as the limits count them; accepted are those that a processor was given.",
    OURS,
)
def counted(view: View) -> Iterator[Bean]:
    for listener, _ in seen(view):
        found: dict[str, float] = {name: listener.counts[count] for name, count in OURS.items()}
        yield Bean(f"mpbroker:type=Listener,name={listener.name}", found)
