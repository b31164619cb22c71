"""Descriptors and produce jobs: every field survives, also at the edges of its type."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpbroker.ipc import slots
from mpbroker.ipc.slots import SlotKind
from mpbroker.ipc.table import Partition, pack_partition, unpack_partition

U8, U16, U32, U64 = (st.integers(0, (1 << bits) - 1) for bits in (8, 16, 32, 64))
I8, I16, I32, I64 = (st.integers(-(1 << bits - 1), (1 << bits - 1) - 1) for bits in (8, 16, 32, 64))
KINDS = st.sampled_from(list(SlotKind))

FIELDS = {
    "request": {
        "kind": KINDS, "flags": U8, "processor": U16, "channel": U32, "connection": U64, "block": U64,
        "generation": U64, "length": U32, "body": U32, "api_key": I16, "api_version": I16, "correlation": I32,
        "received_ns": U64, "listener": U16, "request": U32,
    },
    "reply": {
        "kind": KINDS, "owner": U16, "channel": U32, "connection": U64, "block": U64, "generation": U64,
        "position": U32, "length": U32, "throttle_ms": U32, "request": U32, "done_ns": U64,
        "queue_us": U32, "local_us": U32,
    },
    "return": {"owner": U16, "block": U64, "generation": U64},
    "produce": {
        "kind": KINDS, "acks": I8, "processor": U16, "channel": U32, "connection": U64, "block": U64,
        "generation": U64, "job": U32, "owner": U16, "sender": U16, "timeout_ms": U32, "request": U32,
        "queue_us": U32, "local_us": U32, "throttle_ms": U32,
    },
    "call": {
        "kind": KINDS, "owner": U16, "request": U32, "block": U64, "generation": U64, "length": U32,
        "connection": U64,
    },
}  # fmt: skip


@pytest.mark.parametrize("shape", FIELDS)
@given(data=st.data())
def test_descriptors_come_back(shape: str, data: st.DataObject) -> None:
    values = {name: data.draw(strategy) for name, strategy in FIELDS[shape].items()}
    packed = getattr(slots, f"pack_{shape}")(**values)
    assert len(packed) == 64
    before, after = b"\xaa" * 64, b"\x55" * 64
    found = getattr(slots, f"unpack_{shape}")(before + packed + after, 1)
    assert {name: getattr(found, name) for name in values} == values
    assert slots.kind_of(before + packed + after, 1) == values.get("kind", SlotKind.RETURN)


@pytest.mark.parametrize("index", [-1, 1])
def test_no_slot_outside(index: int) -> None:
    with pytest.raises(IndexError):
        slots.kind_of(bytes(64), index)
    with pytest.raises(IndexError):
        slots.unpack_call(bytes(127), index)


BATCH = {
    "slot": U32, "slot_generation": U32, "data": U64, "data_owner": U16, "length": U32, "record_count": I32,
    "producer_id": I64, "producer_epoch": I16, "base_sequence": I32, "max_timestamp": I64,
    "config_version": U32, "attributes": I16, "hole": U32, "has_log_start": U32,
}  # fmt: skip


@given(st.integers(1, 5), st.data())
def test_jobs_come_back(batches: int, data: st.DataObject) -> None:
    job = bytearray(slots.job_bytes(batches))
    slots.write_job_header(job, batches, 7, 9)
    written = [{name: data.draw(strategy) for name, strategy in BATCH.items()} for _ in range(batches)]
    filled = [(data.draw(I16), data.draw(I64), data.draw(I64), data.draw(I64)) for _ in range(batches)]
    for index, values in enumerate(written):
        slots.write_job_batch(job, index, **values)
    for index, values in reversed(list(enumerate(filled))):
        slots.fill_job_batch(job, index, *values)
    assert slots.read_job_header(job) == (batches, 7, 9)
    for index in range(batches):
        found = slots.read_job_batch(job, index)
        assert {name: getattr(found, name) for name in BATCH} == written[index]
        got = (found.error, found.base_offset, found.append_time_ms, found.log_start_offset)
        assert got == filled[index]


def test_a_job_too_small_is_refused() -> None:
    job = bytearray(slots.job_bytes(1))
    with pytest.raises(ValueError, match="needs"):
        slots.write_job_header(job, 2)
    with pytest.raises(IndexError):
        slots.write_job_batch(job, 1, 0, 0, 0, 0, 0, 0)
    with pytest.raises(IndexError):
        slots.read_job_batch(job, -1)


PARTITION = {
    "topic_id": st.binary(min_size=16, max_size=16), "partition": I32, "generation": U32, "flags": U32,
    "config_version": U32, "leader_epoch": I32, "log_dir": U16, "log_start_offset": I64,
    "high_watermark": I64,
    "high_watermark_segment": I64, "high_watermark_position": I64, "last_stable_offset": I64,
    "last_stable_segment": I64, "last_stable_position": I64, "log_end_offset": I64,
}  # fmt: skip


@given(st.fixed_dictionaries(PARTITION))
def test_partitions_come_back(values: dict[str, object]) -> None:
    partition = Partition(**values)  # type: ignore[arg-type]
    assert unpack_partition(pack_partition(partition)) == partition
