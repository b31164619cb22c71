"""A processor's native turn in the test's own process; the test plays handlers, log process and clients."""

from __future__ import annotations

import os
import socket
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path

from mpbroker.ipc import topology
from mpbroker.ipc.counters import Counter
from mpbroker.ipc.slots import (
    PART_BYTES_EACH,
    PartKind,
    Request,
    Return,
    SlotKind,
    file_generation,
    kind_of,
    pack_part,
    pack_reply,
    unpack_request,
    unpack_return,
)
from mpbroker.ipc.topology import SharedMemory, Sizes
from mpbroker.network.processor.channel import ChannelState
from mpbroker.network.processor.lists import TABLE, ChannelList
from mpbroker.network.processor.processor import connection_prefix, first_flexible_versions
from mpbroker.network.processor.turn import ProcessorTurn
from mpbroker.network.processor.turn_files import TurnFiles
from tests.support.polling import PATIENCE_S, until

FRAME_BYTES_MAX = 4 << 20
PROCESSOR = topology.processor(0)
# A channel is in these at most once. In the others it stays when its connection closes, until Python looks.
ONCE = (
    *(ChannelList.LIST_HELD, ChannelList.LIST_STARVED, ChannelList.LIST_DEFERRED),
    ChannelList.LIST_CLOSED,
)


def frame(
    api_key: int,
    version: int,
    correlation: int,
    body: bytes = b"",
    client: bytes = b"test",
    tags: bytes = b"",
) -> bytes:
    header = struct.pack(">hhih", api_key, version, correlation, len(client)) + client + tags
    return struct.pack(">i", len(header) + len(body)) + header + body


def answer_frame(correlation: int, body: bytes = b"") -> bytes:
    return struct.pack(">ii", 4 + len(body), correlation) + body


class Rig:
    def __init__(
        self,
        handlers: int = 1,
        queued_max: int = 500,
        places: int = 64,
        *,
        memory_bytes: int = 1 << 30,
        extent_bytes: int = 16 << 30,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        idle_ns: int = 0,
        stall_ns: int = 10_000_000_000,
        window: int = 1,
        patience_ns: int = 0,
    ) -> None:
        self.directory = tempfile.TemporaryDirectory(dir="/dev/shm")
        sizes = Sizes(16, memory_bytes, arena_extent_bytes=extent_bytes)
        self.memory = SharedMemory(Path(self.directory.name) / "public", sizes)
        self.handover, self._acceptor_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.turn = ProcessorTurn(
            self.memory,
            PROCESSOR,
            self.handover.fileno(),
            first_flexible_versions(),
            places,
            frame_bytes_max,
            queued_max,
            connection_prefix(PROCESSOR, 1),
            idle_ns,
            stall_ns,
            window,
            patience_ns,
        )
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.requests = {h: self.memory.ring(PROCESSOR, topology.handler(h)) for h in range(handlers)}
        self.answers = {h: self.memory.ring(topology.handler(h), PROCESSOR) for h in range(handlers)}
        self.from_log = self.memory.ring(topology.LOG, PROCESSOR)
        self.arenas = {h: self.memory.arena(topology.handler(h)) for h in range(handlers)}
        self.request_arena = self.memory.arena(PROCESSOR)
        self.clients: list[socket.socket] = []
        for h in range(handlers):
            self.turn.welcome_handler(h)

    def close(self) -> None:
        # The broker's ends are the turn's, if the test has not let go of it.
        unruly: list[str] = []
        if turn := self.__dict__.get("turn"):
            turn.close_idle(1 << 62)
            unruly = self.unruly()
            del self.turn, turn
        for sock in (*self.clients, self.listener, self.handover, self._acceptor_end):
            sock.close()
        self.memory.close()
        self.directory.cleanup()
        assert unruly == []

    def unruly(self) -> list[str]:
        """What channels did that the table in lists.pyx does not have, and lists with a channel twice."""
        moves = [
            f"{ChannelState(state).name} after {ChannelState(before).name}"
            for before, state in self.turn.moves()
            if state not in TABLE[ChannelState(before)][0]
        ]
        entries = [
            f"{ChannelList(which).name} in {ChannelState(state).name}"
            for state, which in self.turn.entries()
            if which not in TABLE[ChannelState(state)][1]
        ]
        listed = self.turn.listed()
        twice = [f"twice in {one.name}" for one in ONCE if len(set(listed[one])) < len(listed[one])]
        return moves + entries + twice

    @property
    def files(self) -> TurnFiles:
        return TurnFiles(self.turn)

    def connect(self) -> socket.socket:
        served, client = self.pair()
        assert self.turn.add_connection(served.detach(), 0)
        return client

    def pair(self) -> tuple[socket.socket, socket.socket]:
        """(the broker's end of a connection that no processor has yet, the client's)"""
        client = socket.create_connection(self.listener.getsockname())
        # What is sent is there at once, also behind something that was not acknowledged yet.
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        served, _ = self.listener.accept()
        served.setblocking(False)
        client.settimeout(PATIENCE_S)
        self.clients.append(client)
        return served, client

    def step(self, turns: int = 3) -> None:
        """Loopback delivers at once; a few turns see everything that was sent."""
        for _ in range(turns):
            self.turn.turn(0)

    def taken(self, handler: int = 0) -> list[Request | Return]:
        """Return what the handler takes now: REQUEST, CANCEL and RETURN."""
        slots, _ = self.requests[handler].take()
        return [
            unpack_return(slots, i) if kind_of(slots, i) == SlotKind.RETURN else unpack_request(slots, i)
            for i in range(len(slots) // 64)
        ]

    def requests_taken(self, handler: int = 0) -> list[Request]:
        return [r for r in self.taken(handler) if isinstance(r, Request) and r.kind == SlotKind.REQUEST]

    def ask(self, client: socket.socket, data: bytes) -> Request:
        """Send it, and return the one request that the first handler gets by that."""
        client.sendall(data)
        self.step()
        (request,) = self.requests_taken()
        return request

    def ask_in_pieces(self, client: socket.socket, data: bytes) -> Request:
        """Ask with more than the buffers hold: the broker reads in between."""
        client.setblocking(False)
        view = memoryview(data)
        while view:
            try:
                view = view[client.send(view) :]
            except BlockingIOError:
                self.step(1)
        client.settimeout(PATIENCE_S)
        (request,) = self.await_requests()
        return request

    def finish(self, client: socket.socket, request: Request, handler: int = 0) -> None:
        """Answer it, and check that the client gets the answer."""
        payload = answer_frame(request.correlation)
        self.answer(request, payload, handler)
        self.step()
        assert receive(client, len(payload)) == payload

    def await_requests(self, handler: int = 0) -> list[Request]:
        """Wait for frames larger than the socket buffers, which need several rounds between the two ends."""
        self.turn.turn(1)
        return until(lambda: self.requests_taken(handler), "a request", lambda: self.turn.turn(1))

    def reasons(self) -> list[int]:
        """Return why connections were closed since the last call."""
        return [reason for _, reason, _ in self.turn.closed()]

    def await_reasons(self) -> list[int]:
        self.turn.turn(1)
        return until(self.reasons, "a connection that is closed", lambda: self.turn.turn(1))

    def counter(self, counter: Counter) -> int:
        return self.memory.counters(PROCESSOR).get(counter)

    def bytes_of(self, request: Request) -> bytes:
        return bytes(self.request_arena.view(request.block, request.length))

    def answer(
        self,
        request: Request,
        payload: bytes,
        handler: int = 0,
        *,
        throttle_ms: int = 0,
        done_ns: int = 0,
        flags: int = 0,
    ) -> int:
        """Answer as a handler does an uncommon request: out of its own arena. Returns the block."""
        arena = self.arenas[handler]
        block = arena.allocate(len(payload))
        arena.view(block, len(payload))[:] = payload
        generation = arena.lend(block, PROCESSOR)
        self.push(
            handler,
            pack_reply(
                SlotKind.SEND,
                topology.handler(handler),
                request.channel,
                request.connection,
                block,
                generation,
                0,
                len(payload),
                throttle_ms,
                request.request,
                done_ns,
                flags=flags,
            ),
        )
        return block

    def answer_kind(self, request: Request, kind: int, handler: int = 0, *, throttle_ms: int = 0) -> None:
        self.push(
            handler,
            pack_reply(
                kind,
                topology.handler(handler),
                request.channel,
                request.connection,
                throttle_ms=throttle_ms,
                request=request.request,
            ),
        )

    def answer_in_place(self, request: Request, payload: bytes) -> None:
        """Answer as the log process does a common produce: in the request's own block."""
        at = (request.length + 7) // 8 * 8
        self.request_arena.view(request.block, at + len(payload))[at:] = payload
        assert self.from_log.push(
            pack_reply(
                SlotKind.SEND,
                PROCESSOR,
                request.channel,
                request.connection,
                request.block,
                request.generation,
                at,
                len(payload),
                request=request.request,
            )
        )

    def push(self, handler: int, slot: bytes) -> None:
        assert self.answers[handler].push(slot)

    def in_use_bytes(self) -> int:
        """Return the bytes in use in the request arena, by the processor's counter page."""
        self.turn.turn(0)
        return self.counter(Counter.COUNT_ARENA_BYTES)


MakeRig = Callable[..., Rig]


def parts_answer(
    rig: Rig,
    request: object,
    header: bytes,
    path: Path,
    slices: list[tuple[int, int]],
    inode: int | None = None,
    handler: int = 0,
) -> None:
    arena = rig.arenas[handler]
    name = os.fsencode(path)
    count = 1 + len(slices)
    at_header = count * PART_BYTES_EACH
    at_path = at_header + len(header)
    block = arena.allocate(at_path + len(name))
    found = file_generation(path.stat()) if inode is None else inode
    parts = pack_part(PartKind.PART_BYTES, len(header), at_header)
    for position, length in slices:
        parts += pack_part(PartKind.PART_FILE, length, position, 3, 1, 0, found, at_path, len(name))
    arena.view(block, at_path + len(name))[:] = parts + header + name
    generation = arena.lend(block, PROCESSOR)
    rig.push(
        handler,
        pack_reply(
            SlotKind.SEND_PARTS,
            topology.handler(handler),
            request.channel,
            request.connection,
            block,
            generation,
            0,
            count,  # type: ignore[attr-defined]
            request=request.request,  # type: ignore[attr-defined]
        ),
    )


def answer_from_replaced(rig: Rig, request: Request, segment: Path) -> None:
    """Answer from a file that has another one's name by now, so that the request is asked again."""
    parts_answer(rig, request, b"HEAD", segment, [(0, 10)], inode=1)
    rig.step()
    (channel,) = rig.files.opening()
    rig.files.ask_again(channel)
    rig.step()


def open_all(rig: Rig) -> None:
    for channel in rig.files.opening():
        missing = rig.files.missing(channel)
        if missing is not None:
            for slot, generation, base, inode, path in missing:
                rig.files.opened(slot, generation, base, inode, os.open(path, os.O_RDONLY))
            rig.files.resume(channel)


def receive(client: socket.socket, count: int) -> bytes:
    out = b""
    while len(out) < count:
        more = client.recv(count - len(out))
        if not more:
            raise EOFError(f"closed after {len(out)} of {count} bytes")
        out += more
    return out


def is_closed(client: socket.socket) -> bool:
    """Return True if the broker has closed, with nothing left to read."""
    client.setblocking(False)
    try:
        return client.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True
    finally:
        client.settimeout(PATIENCE_S)


__all__ = [
    "FRAME_BYTES_MAX",
    "PROCESSOR",
    "Rig",
    "answer_frame",
    "frame",
    "is_closed",
    "kind_of",
    "open_all",
    "os",
    "parts_answer",
    "receive",
]
