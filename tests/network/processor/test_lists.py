"""States of channels and the lists that they wait in: what happens is in the table of `lists.pyx`."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path
from random import Random

import pytest

from mpbroker.ipc.slots import Request, SlotKind
from mpbroker.network.processor.channel import ChannelState
from mpbroker.network.processor.lists import TABLE, ChannelList
from mpbroker.network.processor.turn_tls import TlsSaslTurn
from tests.support.forms import rounds
from tests.support.processor_rig import MakeRig, Rig, answer_frame, frame, parts_answer

PRODUCE, FETCH, METADATA, HEARTBEAT = 0, 1, 3, 12
FREE, READING, WAITING, SENDING, OPENING = (
    ChannelState.CHANNEL_FREE,
    ChannelState.CHANNEL_READING,
    ChannelState.CHANNEL_WAITING,
    ChannelState.CHANNEL_SENDING,
    ChannelState.CHANNEL_OPENING,
)
CLIENTS_MAX = 12
STEPS = 120
SEGMENT_BYTES = 1 << 20


def test_the_table_has_every_state_and_every_list() -> None:
    assert set(TABLE) == set(ChannelState)
    assert {state for following, _ in TABLE.values() for state in following} == set(ChannelState)
    assert {which for _, entered in TABLE.values() for which in entered} == set(ChannelList)


def test_a_request_takes_its_channel_through_three_states(rig: Rig) -> None:
    client = rig.connect()
    request = rig.ask(client, frame(METADATA, 1, 1))
    rig.answer(request, answer_frame(1))
    rig.step()
    answered = {(FREE, READING), (READING, WAITING), (WAITING, SENDING), (SENDING, READING)}
    assert rig.turn.moves() == answered | {(READING, READING)}
    client.close()
    rig.step()
    assert rig.turn.moves() == answered | {(READING, READING), (READING, FREE)}
    assert rig.turn.entries() <= {(READING, ChannelList.LIST_DEFERRED), (READING, ChannelList.LIST_CLOSED)}


def test_a_channel_is_in_the_list_of_what_it_waits_for(make_rig: MakeRig, tmp_path: Path) -> None:
    segment = tmp_path / "s.log"
    segment.write_bytes(bytes(100))
    rig = make_rig(queued_max=1, memory_bytes=64 << 10)
    fetching, taken, held = [rig.connect() for _ in range(3)]
    request = rig.ask(fetching, frame(FETCH, 4, 1))
    parts_answer(rig, request, b"HEAD", segment, [(0, 10)])
    rig.step()
    taken.sendall(frame(METADATA, 1, 2))
    rig.step()
    held.sendall(frame(METADATA, 1, 3))
    rig.step()
    listed = rig.turn.listed()
    assert (listed[ChannelList.LIST_OPENING], listed[ChannelList.LIST_HELD]) == ([0], [2])
    assert (READING, ChannelList.LIST_HELD) in rig.turn.entries()
    assert (OPENING, ChannelList.LIST_OPENING) in rig.turn.entries()


def test_a_channel_is_in_a_list_once(rig: Rig) -> None:
    rig.connect()
    deferring = TlsSaslTurn(rig.turn)
    deferring.later(0)
    deferring.later(0)
    assert rig.turn.listed()[ChannelList.LIST_DEFERRED] == [0]


def test_a_move_that_the_table_does_not_have_is_seen(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.connect()
    monkeypatch.setitem(TABLE, FREE, ((FREE,), ()))
    assert rig.unruly() == ["CHANNEL_READING after CHANNEL_FREE"]
    monkeypatch.undo()


class History:
    """Clients and handlers that do anything at any time."""

    def __init__(self, seed: int, segment: Path) -> None:
        self.random = Random(seed)
        self.segment = segment
        self.rig = Rig(
            handlers=2,
            queued_max=self.random.choice((3, 500)),
            places=CLIENTS_MAX + 4,
            memory_bytes=64 << 10,
            stall_ns=self.random.choice((1, 10_000_000_000)),
            window=self.random.choice((1, 4)),
            patience_ns=self.random.choice((0, 3_600_000_000_000)),
        )
        self.clients: list[socket.socket] = []
        self.taken: list[tuple[int, Request]] = []

    def run(self) -> None:
        acts = (
            *(self.connect, self.send, self.send, self.send_a_part, self.receive, self.leave),
            *(self.take, self.take, self.answer, self.answer, self.open_files, self.report),
        )
        for step in range(STEPS):
            self.random.choice(acts)()
            if step == STEPS // 2:
                self.rig.turn.fence_handler(1)
                self.taken = [(handler, request) for handler, request in self.taken if handler == 0]
            self.rig.turn.turn(0)
            assert self.rig.unruly() == []
        self.rig.turn.stop_reading()
        self.rig.step()
        self.rig.close()

    def connect(self) -> None:
        if len(self.clients) < CLIENTS_MAX:
            client = self.rig.connect()
            client.setblocking(False)
            self.clients.append(client)

    def send(self) -> None:
        for _ in range(self.random.randint(1, 3)):
            key, version = self.random.choice(((PRODUCE, 3), (FETCH, 4), (METADATA, 1), (HEARTBEAT, 3)))
            self._send(frame(key, version, 1, bytes(self.random.choice((0, 100, 3000, 30_000)))))

    def send_a_part(self) -> None:
        self._send(frame(METADATA, 1, 1, bytes(5000))[: self.random.randint(1, 5000)])

    def _send(self, data: bytes) -> None:
        if self.clients:
            with contextlib.suppress(OSError):
                self.random.choice(self.clients).send(data)

    def receive(self) -> None:
        for client in self.clients:
            with contextlib.suppress(OSError):
                client.recv(1 << 20)

    def leave(self) -> None:
        if self.clients and self.random.random() < 0.3:
            self.clients.pop(self.random.randrange(len(self.clients))).close()

    def take(self) -> None:
        handler = self.random.randrange(2)
        self.taken += [(handler, request) for request in self.rig.requests_taken(handler)]

    def answer(self) -> None:
        if not self.taken:
            return
        handler, request = self.taken.pop(self.random.randrange(len(self.taken)))
        kind = self.random.choice(("bytes", "bytes", "parts", "later", "nothing", "close"))
        throttle_ms = self.random.choice((0, 0, 1, 3_600_000))
        if kind == "later":
            self.rig.answer_kind(request, SlotKind.PARKED, handler)
            self.taken.append((handler, request))
        elif kind in ("nothing", "close"):
            noop = SlotKind.NOOP if kind == "nothing" else SlotKind.CLOSE
            self.rig.answer_kind(request, noop, handler, throttle_ms=throttle_ms)
        elif kind == "parts" and request.api_key == FETCH:
            # More than is sent in a turn, or less.
            slices = [(0, self.random.choice((1000, SEGMENT_BYTES)))]
            inode = self.random.choice((None, None, 1))
            parts_answer(self.rig, request, b"HEAD", self.segment, slices, inode, handler)
        else:
            self.rig.answer(request, answer_frame(1), handler, throttle_ms=throttle_ms)

    def open_files(self) -> None:
        files = self.rig.files
        for channel in files.opening():
            missing = files.missing(channel)
            then = self.random.choice((files.resume, files.ask_again, files.wait))
            if missing is None:
                continue
            if then == files.resume:
                for slot, generation, base, inode, path in missing:
                    files.opened(slot, generation, base, inode, os.open(path, os.O_RDONLY))
            then(channel)

    def report(self) -> None:
        self.rig.turn.closed()
        self.rig.turn.late_answers()


def test_histories_keep_to_the_table(tmp_path: Path) -> None:
    segment = tmp_path / "s.log"
    segment.write_bytes(bytes(SEGMENT_BYTES))
    for seed in range(rounds(100)):
        History(seed, segment).run()
