"""The play of a broker: turns that are shared, cores that run out, rounds of a disk."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ops.bench.simulation import COLD_CONNECTIONS, Costs, Hop, Setup, play

HOPS = {
    "generator": Hop(10.0, 5.0),
    "processor": Hop(10.0, 4.0),
    "handler": Hop(10.0, 1.0),
    "log worker": Hop(12.0, 1.0),
}
OS = Costs(HOPS, wake_us=5.0)
DURABLE = replace(OS, disk_us=90.0, round_us=60.0)
MANY_CORES = 16


def rate(costs: Costs, connections: int, cores: int = MANY_CORES, **others: int) -> float:
    return play(costs, Setup(connections, cores, **others)).requests_per_s


def test_one_connection_waits_for_each_hop_once() -> None:
    served_us = (10 + 5) + (2 * 10 + 4) + (10 + 1) + (12 + 1) + 5 * 5
    assert rate(OS, 1) == pytest.approx(1e6 / served_us, rel=0.03)
    round_us = 60 + 90 + 12 + 4 * 5
    assert rate(DURABLE, 1) == pytest.approx(1e6 / (served_us + round_us), rel=0.03)


def test_one_connection_has_a_turn_of_its_own_at_each_hop() -> None:
    turns = play(DURABLE, Setup(1, 2)).turns
    expected = {"generator": 1, "processor": 2, "handler": 1, "log worker": 2, "flusher": 1}
    assert turns == {kind: pytest.approx(number, rel=0.01) for kind, number in expected.items()}


def test_many_connections_get_what_the_busiest_hop_can_do_and_share_turns() -> None:
    played = play(OS, Setup(2000, MANY_CORES))
    assert played.requests_per_s == pytest.approx(1e6 / 5.0, rel=0.05)
    assert max(played.turns.values()) < 0.2


def test_cores_limit_all_hops_together() -> None:
    assert rate(OS, 1000, cores=1) == pytest.approx(1e6 / (4 + 1 + 1 + 5), rel=0.1)
    assert rate(OS, 1000, cores=2) < 2e6 / (4 + 1 + 1 + 5), "never more than there is"


@pytest.mark.parametrize("costs", [OS, DURABLE], ids=["os", "durable"])
def test_more_connections_and_more_cores_are_not_slower(costs: Costs) -> None:
    rates = [rate(costs, connections, 2) for connections in (1, 8, 64, 1000)]
    assert rates == sorted(rates)
    assert rate(costs, 256, 1) < rate(costs, 256, 2) < rate(costs, 256, MANY_CORES)


def test_a_round_is_shared_by_those_that_wait_for_it() -> None:
    few, many = (rate(DURABLE, connections) / rate(OS, connections) for connections in (1, 1000))
    assert few < 0.5
    assert many > 0.9


def test_rounds_of_log_workers_share_the_device() -> None:
    slow = replace(DURABLE, disk_us=5000.0)
    alone, three = rate(slow, 64), rate(slow, 64, log_workers=3)
    assert three < 0.75 * alone, "three rounds at once take twice the time of one"


def test_more_of_the_busiest_processes_help() -> None:
    one, four = (
        play(OS, Setup(2000, MANY_CORES, processors=processors, generator=False)).requests_per_s
        for processors in (1, 4)
    )
    assert one == pytest.approx(1e6 / 4.0, rel=0.1)
    assert four > 3 * one


def test_cold_caches_cost_by_the_root_of_the_connections() -> None:
    hop = Hop(0.0, 5.0, cold_us=4.0)
    assert hop.each_us(COLD_CONNECTIONS) == 9.0
    assert hop.each_us(COLD_CONNECTIONS / 4) == 7.0


def test_partitions_cost_the_log_worker() -> None:
    costs = replace(OS, append_us=10.0)
    assert rate(costs, 256, partitions=1) == rate(OS, 256)
    assert rate(costs, 256, partitions=1000) == pytest.approx(1e6 / 11, rel=0.1)


def test_partitions_cost_commit_rounds() -> None:
    costs = replace(DURABLE, gather_us=10.0)
    assert rate(costs, 256, partitions=1) == rate(DURABLE, 256)
    assert rate(costs, 256, partitions=1000) == pytest.approx(1e6 / 10, rel=0.1)


def test_the_same_is_played_each_time() -> None:
    assert play(DURABLE, Setup(64, 2)) == play(DURABLE, Setup(64, 2))
