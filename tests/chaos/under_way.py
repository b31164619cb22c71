"""Requests under way between clients and a broker, for messages of failures: where they are, since when.

Seen from outside, so that a broker which hangs can be asked, too: the kernel knows what each connection has
sent last and what nobody has read, the counters of the processes know what waits where.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from mpbroker.ipc.counters import Counter
from mpbroker.ipc.pointer import PUBLIC_NAME
from mpbroker.ipc.topology import LAYOUT_VERSION, PROCESSES, PUBLIC_MAGIC, counter_page, name_of
from ops.bench.brokers import Broker, Mpbroker
from shm.region import LayoutMismatch, Region, RegionUnavailable

# What waits at this moment. Blocks of an arena are lent while a request, an append or an answer is under way.
WAITING = {
    Counter.COUNT_ARENA_BYTES: "bytes lent",
    Counter.COUNT_QUEUED_REQUESTS: "requests not taken",
    Counter.COUNT_RESPONSES_WAITING: "answers not taken",
    Counter.COUNT_CALLS_DELAYED: "calls not answered",
    Counter.COUNT_PRODUCES_DELAYED: "produces not durable",
    Counter.COUNT_FETCHES_DELAYED: "fetches parked",
    Counter.COUNT_REBALANCES_DELAYED: "groups that rebalance",
    Counter.COUNT_THROTTLED_PRODUCE: "channels throttled (produce)",
    Counter.COUNT_THROTTLED_FETCH: "channels throttled (fetch)",
    Counter.COUNT_THROTTLED_REQUEST: "channels throttled (request)",
    Counter.COUNT_THROTTLED_MUTATION: "channels throttled (mutation)",
}
TCP_TABLE = Path("/proc/net/tcp")
# struct tcp_info of linux/tcp.h: tcpi_last_data_sent, tcpi_last_ack_sent, tcpi_last_data_recv, in ms ago.
TCP_INFO_BYTES = 104
LAST_DATA = struct.Struct("=3I")
LAST_DATA_AT = 44


def under_way(broker: Broker) -> str:
    """Connections and, of mpbroker, processes: a line for each of which there is something to say."""
    lines = list(connections(broker.port))
    if isinstance(broker, Mpbroker):
        lines += processes(broker.runtime_dir / PUBLIC_NAME)
    return "\n".join(lines) or "nothing is under way"


def connections(port: int) -> Iterator[str]:
    """Connections to the port: what neither end has read, and who of this process waits for an answer."""
    asked = dict(_asked(port))
    for client, unread_by_broker, unread_by_client in _unread(port):
        said = asked.get(client, "of another process")
        yield f"connection of :{client}: {said}, unread {unread_by_broker} and {unread_by_client} bytes"


def _asked(port: int) -> Iterator[tuple[int, str]]:
    """Return what the sockets of this process have sent and received, by local port."""
    for found in psutil.Process().net_connections("tcp4"):
        if not found.raddr or found.raddr.port != port or found.fd < 0:
            continue
        try:
            with socket.fromfd(found.fd, socket.AF_INET, socket.SOCK_STREAM) as own:
                info = own.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES)
        except OSError:
            continue  # its owner has closed it meanwhile
        sent_ms, _, got_ms = LAST_DATA.unpack_from(info, LAST_DATA_AT)
        waits = "waits for an answer" if sent_ms < got_ms else "has its answer"
        yield found.laddr.port, f"sent {sent_ms} ms ago, got {got_ms} ms ago, {waits}"


def _unread(port: int) -> Iterator[tuple[int, int, int]]:
    """Return for each connection the client's port and the bytes that broker and client have not read.

    The kernel's table has a line for each end: addresses as hexadecimal digits, and the bytes to send and to
    read.
    """
    ends: dict[tuple[int, int], int] = {}
    for line in TCP_TABLE.read_text().splitlines()[1:]:
        _, ours, theirs, _, queues, *_ = line.split()
        to_read = int(queues.split(":")[1], 16)
        ends[_port_of(ours), _port_of(theirs)] = to_read
    for (local, client), to_read in ends.items():
        if local == port and client:
            yield client, to_read, ends.get((client, port), 0)


def _port_of(address: str) -> int:
    return int(address.split(":")[1], 16)


def processes(public: Path) -> Iterator[str]:
    """Describe what waits in each process that has anything waiting, and when that was last awake."""
    try:
        region = Region.attach(public, PUBLIC_MAGIC, LAYOUT_VERSION)
    except (RegionUnavailable, LayoutMismatch) as error:
        yield f"no broker serves at this moment: {error}"
        return
    now_ns = time.monotonic_ns()
    for index in range(PROCESSES):
        page = counter_page(region, index)
        waiting = [f"{count} {what}" for counter, what in WAITING.items() if (count := page.get(counter))]
        if waiting:
            awake_ms = (now_ns - page.heartbeat_ns) // 1_000_000
            yield f"{name_of(index)}: {', '.join(waiting)}; awake {awake_ms} ms ago {page.status}".rstrip()
