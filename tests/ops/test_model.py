"""The model of what a broker gets: costs that are found in measurements, and what they predict."""

from __future__ import annotations

import math
from typing import Any

import pytest

from ops.bench import growth_file, model
from ops.bench.model import ModelError
from ops.bench.simulation import COLD_CONNECTIONS, Costs, Hop, Setup

HOPS = {
    "generator": Hop(10.0, 5.0, cold_us=4.0),
    "processor": Hop(8.0, 4.0, cold_us=3.0),
    "handler": Hop(10.0, 1.0),
    "log worker": Hop(12.0, 1.0),
}
KNOWN = Costs(HOPS, wake_us=8.0, append_us=3.0, disk_us=70.0, round_us=20.0, gather_us=2.0)
# What a wake-up costs of its time in CPU.
WAKE_CPU_US = 6.0
VISITS = {"generator": 1, "processor": 2, "handler": 1, "log worker": 1}


def measured(series: str, connections: int, shared: float, **more_us: float) -> dict[str, Any]:
    """Return a point whose requests each pay so much of a turn."""
    cold = math.sqrt(connections / COLD_CONNECTIONS)
    cpu_us = {
        kind: hop.request_us + hop.cold_us * cold + hop.turn_us * VISITS[kind] * shared
        for kind, hop in HOPS.items()
    }
    cpu_us["log worker"] += more_us.get("log_worker", 0.0)
    cpu_us["processor"] += more_us.get("woken", 0.0)
    total = sum(cpu_us.values()) + more_us.get("waits", 0.0)
    return {
        "x": connections,
        "series": series,
        "requests_per_s": 1e6 / total,
        "generator_us": cpu_us.pop("generator"),
        "cpu_us": cpu_us,
        "turns": {kind: VISITS[kind] * shared for kind in cpu_us},
        "rounds": shared,
        "sync_us": 20.0 + 70.0 + 2 * 8.0,
        "others_cores": 0.0,
    }


def curves() -> dict[str, Any]:
    """Return what would be measured of a broker that costs what is known."""
    woken = model.WAKES * WAKE_CPU_US
    waits = model.WAKES * (KNOWN.wake_us - WAKE_CPU_US)
    of_round = 12.0 + 20.0 + model.ROUND_WAKES * WAKE_CPU_US
    alone = measured("os", 1, 1.0, woken=woken, waits=waits)
    points = [
        alone,
        measured("os", 8, 0.4),
        measured("os", 64, 0.1),
        measured("os", 10_000, 0.01),
        measured("durable", 1, 1.0, woken=woken, waits=waits, log_worker=of_round),
    ]
    spread = [
        measured("os", 1000, 0.1, log_worker=3.0 * 0.9),
        measured("durable", 1000, 0.1, log_worker=3.0 * 0.9 + 20.0 * 0.1 + 2.0 * 0.9),
    ]
    return {
        "connections": {"cores": 2, "points": points},
        "partitions": {"cores": 2, "points": spread},
    }


def test_costs_are_found_again_in_what_they_cost() -> None:
    found = model.fitted(curves())
    for kind, hop in found["durable"].hops.items():
        known = HOPS[kind]
        assert (hop.turn_us, hop.request_us, hop.cold_us) == pytest.approx(
            (known.turn_us, known.request_us, known.cold_us), rel=0.01
        ), kind
    costs = found["durable"]
    assert (costs.wake_us, costs.append_us) == pytest.approx((8.0, 3.0), rel=0.01)
    assert (costs.round_us, costs.disk_us, costs.gather_us) == pytest.approx((20.0, 70.0, 2.0), rel=0.01)
    os = found["os"]
    assert (os.disk_us, os.round_us, os.gather_us) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("curve", "x", "told"),
    [
        ("connections", 64, "os, 64 of connections"),
        ("connections", 1, "os, 1 of connections"),
        ("partitions", 1000, "os, 1000 of partitions"),
    ],
)
def test_a_point_that_is_missing_is_named(curve: str, x: int, told: str) -> None:
    lacking = curves()
    lacking[curve]["points"] = [point for point in lacking[curve]["points"] if point["x"] != x]
    with pytest.raises(ModelError, match=f"{told}: run make bench-growth"):
        model.fitted(lacking)


def test_more_points_are_predicted_than_fitted() -> None:
    fitted = [is_fitted for _, _, _, is_fitted in model.setups(growth_file.read())]
    assert sum(fitted) == 8
    assert len(fitted) > 5 * sum(fitted)


def test_the_model_says_nothing_of_what_it_does_not_know() -> None:
    known = [(curve, point["x"]) for curve, point, _, _ in model.setups(growth_file.read())]
    assert {curve for curve, _ in known} == {
        *("connections", "partitions", "processors", "handlers", "log-workers", "hops")
    }
    assert max(x for curve, x in known if curve == "partitions") == model.PARTITIONS_MOST


def test_a_larger_machine_is_set_up_as_by_default() -> None:
    assert model.machine(16, 1, 4000) == Setup(
        4000, 16, processors=8, handlers=16, log_workers=2, partitions=2, generator=False
    )
    assert model.machine(64, 1000, 4000).log_workers == 7


def test_the_limit_is_what_helps_most() -> None:
    rate, limit = model.limited(KNOWN, Setup(2000, 16, generator=False))
    assert limit == "processors"
    assert rate == pytest.approx(1e6 / HOPS["processor"].each_us(2000), rel=0.05)
    waits = Costs(HOPS, wake_us=1.0, disk_us=50_000.0, round_us=1.0)
    assert model.limited(waits, Setup(64, 16))[1] in ("disk", "connections")
