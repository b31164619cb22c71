"""Two-copy slot table: no torn read, whoever dies; readers never wait."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shm._bench import table_storm, table_verify
from shm.region import Block, Region, sparse
from shm.table import SlotTable, slot_bytes
from shm.word import Words

Fork = Callable[[Callable[[], None]], Any]
Effort = Callable[[int], int]


@pytest.mark.parametrize("payload_bytes", [8, 64, 72, 1024, 4096])
def test_no_torn_read_against_a_writer(fork: Fork, payload_bytes: int, effort: Effort) -> None:
    """Every payload is its version over and over: a mixture, an old one or a wrong one shows."""
    memory, stop = sparse(slot_bytes(payload_bytes) * 3), Words(sparse(4096))

    def write() -> None:
        while not stop.load(0):
            table_storm(SlotTable(memory, 3, payload_bytes), 1, 1000)

    child = fork(write)
    table, reads, fresh = SlotTable(memory, 3, payload_bytes), 0, 0
    while reads < effort(1_000_000) or fresh < 100:
        torn, _, new = table_verify(table, 1, 500)
        assert torn == 0
        fresh += new
        reads += 500
    stop.store(0, 1)
    assert child.wait() == 0
    assert table.read(1) == table.version(1).to_bytes(8, "little") * (payload_bytes // 8)
    assert table.read(0) == table.read(2) == bytes(payload_bytes)


def test_python_readers_see_whole_payloads(fork: Fork) -> None:
    memory, stop = sparse(slot_bytes(80)), sparse(4096)

    def write() -> None:
        table, number = SlotTable(memory, 1, 80), 0
        while not Words(stop).load(0):
            number += 1
            table.write(0, bytes([number & 255]) * 80)

    child, table, seen = fork(write), SlotTable(memory, 1, 80), {bytes(80)}
    while len(seen) < 200:
        payload = table.read(0)
        assert payload == payload[:1] * 80
        seen.add(payload)
    Words(stop).store(0, 1)
    assert child.wait() == 0


@given(st.lists(st.tuples(st.integers(0, 4), st.binary(min_size=33, max_size=33))))
def test_holds_what_was_written_last(writes: list[tuple[int, bytes]]) -> None:
    table = SlotTable(sparse(slot_bytes(33) * 5), 5, 33)
    model = [bytes(33)] * 5
    for slot, payload in writes:
        table.write(slot, payload)
        model[slot] = payload
    assert [table.read(slot) for slot in range(5)] == model
    assert [table.version(slot) for slot in range(5)] == [
        sum(s == slot for s, _ in writes) for slot in range(5)
    ]
    wanted = array("Q", [4, 0, 4])
    assert array("Q", table.versions(wanted)).tolist() == [table.version(slot) for slot in wanted]


@pytest.mark.parametrize("start", [2**32 - 2, 2**63 - 2, 2**64 - 2])
def test_versions_wrap(start: int) -> None:
    memory = sparse(slot_bytes(16))
    Words(memory).store(0, start)
    table = SlotTable(memory, 1, 16)
    for number in range(5):
        table.write(0, bytes([number]) * 16)
        # A version of 2**64 - 1 reads as "given up", once in 2**64 writes; the next write ends it.
        if table.version(0) != 2**64 - 1:
            assert table.read(0) == bytes([number]) * 16
    assert table.version(0) == (start + 5) % 2**64


def test_an_attached_reader_cannot_write(tmpfs: Path, dice: random.Random) -> None:
    """Without the check it would die of SIGSEGV."""
    region = Region.create_public(tmpfs / "region", b"TESTTABL", 1, [Block("table", slot_bytes(100))])
    payload = dice.randbytes(100)
    SlotTable(region.block("table"), 1, 100).write(0, payload)
    table = SlotTable(Region.attach(tmpfs / "region", b"TESTTABL", 1).block("table"), 1, 100)
    assert table.read(0) == payload
    with pytest.raises(TypeError, match="read-only"):
        table.write(0, payload)


def test_misuse_is_refused() -> None:
    table = SlotTable(sparse(slot_bytes(16) * 2), 2, 16)
    for slot, payload in ((2, bytes(16)), (0, bytes(15)), (2**64 - 1, bytes(16))):
        with pytest.raises(ValueError, match="slot"):
            table.write(slot, payload)
    with pytest.raises(IndexError):
        table.read(2)
    with pytest.raises(IndexError):
        table.version(2)
    with pytest.raises(IndexError):
        table.versions(array("Q", [0, 2]))
    assert table.versions(array("Q")) == b""
    with pytest.raises(ValueError, match="need"):
        SlotTable(sparse(4096), 2**60, 16)
    for payload_bytes in (0, 2**64 - 32):
        with pytest.raises(ValueError, match="payload"):
            SlotTable(sparse(4096), 1, payload_bytes)
    with pytest.raises(ValueError, match="cache line"):
        SlotTable(sparse(4096)[8:], 1, 16)
