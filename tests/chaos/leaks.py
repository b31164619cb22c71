"""What a broker still holds when nobody is connected any more: it must be nothing."""

import gc
from collections.abc import Mapping

import psutil

from mpbroker.ipc.counters import Counter
from mpbroker.ipc.listeners import MAX_LISTENERS, ListenerCount
from mpbroker.ipc.pointer import PUBLIC_NAME
from mpbroker.ipc.topology import (
    ACCEPTOR,
    COORDINATOR,
    HANDLERS,
    LAYOUT_VERSION,
    LOG_WORKERS,
    PROCESSORS,
    PUBLIC_MAGIC,
    counter_page,
    listener_counts,
    name_of,
)
from ops.bench.brokers import Broker, Mpbroker
from shm.region import Region
from tests.chaos.under_way import under_way
from tests.support.polling import comes

NAMED = (ACCEPTOR, COORDINATOR, *LOG_WORKERS, *PROCESSORS, *HANDLERS)


def held(broker: Mpbroker) -> Mapping[str, int]:
    """Bytes of arena blocks in use by process, and connections."""
    public = Region.attach(broker.runtime_dir / PUBLIC_NAME, PUBLIC_MAGIC, LAYOUT_VERSION)
    pages = {name_of(index): counter_page(public, index) for index in NAMED}
    found = {f"{name}: bytes": page.get(Counter.COUNT_ARENA_BYTES) for name, page in pages.items()}
    for name, page in pages.items():
        open_now = page.get(Counter.COUNT_CONNECTIONS_CREATED) - page.get(Counter.COUNT_CONNECTIONS_CLOSED)
        found[f"{name}: connections"] = open_now
    for number in range(MAX_LISTENERS):
        # What the connection limits go by.
        found[f"listener {number}: connections"] = listener_counts(public, number).get(ListenerCount.OPEN)
    return {what: count for what, count in found.items() if count}


def complaints(broker: Broker) -> list[str]:
    """Gives the broker a moment; then everything that it still holds is a leak."""
    if not isinstance(broker, Mpbroker):
        return []
    # A client object in a reference cycle is connected until it is collected.
    gc.collect()
    if comes(lambda: not held(broker)):
        return []
    left = held(broker)
    connections = psutil.Process().net_connections()
    ours = sum(1 for each in connections if each.raddr and each.raddr.port == broker.port)
    counts = [f"{ours} are connected, and {what}: {count}" for what, count in left.items()]
    return [*counts, under_way(broker)]
