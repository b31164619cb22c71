"""What is read of the processes of a running broker from outside."""

from __future__ import annotations

from pathlib import Path

import pytest

from ops.bench import frames, scenarios
from ops.bench.brokers import Mpbroker, running
from ops.bench.hops import KINDS, Hops, Work, difference

PRODUCES = 5


def test_work_is_added_and_subtracted_count_by_count() -> None:
    now, before = Work(cpu_ns=50, rounds=7), Work(cpu_ns=20, rounds=3)
    assert now - before == Work(cpu_ns=30, rounds=4)
    assert (now - before) + before == now


def test_a_broker_that_does_not_run_is_refused(tmp_path: Path) -> None:
    broker = Mpbroker(tmp_path)
    broker.log_dir.mkdir()
    with pytest.raises(FileNotFoundError, match="no broker runs on"):
        Hops(broker)


def test_each_hop_of_a_produce_is_counted(tmp_path: Path) -> None:
    with running(Mpbroker(tmp_path)) as broker:
        assert isinstance(broker, Mpbroker)
        scenarios.create_topic(broker, "counted")
        hops = Hops(broker)
        assert {kind for kind, _ in hops.members()} == set(KINDS)
        before = hops.look()
        request = frames.produce("counted", records=1, value_bytes=100)
        with frames.connected(broker.address) as connection:
            for _ in range(PRODUCES):
                assert frames.exchange(connection, request)[0] == 0
        work = difference(hops.look(), before)
    assert work["log worker"].batches == PRODUCES
    assert 1 <= work["log worker"].rounds <= PRODUCES
    assert work["log worker"].bytes > PRODUCES * 100
    # A processor counts a response after it has sent it: that of the topic's creation may be among these.
    assert work["processor"].responses in (PRODUCES, PRODUCES + 1)
    assert work["processor"].reads >= PRODUCES
    assert work["processor"].writes >= PRODUCES
    assert all(work[kind].cpu_ns > 0 and work[kind].turns > 0 for kind in ("processor", "handler"))
