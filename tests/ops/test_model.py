"""The model of what a broker gets: queues that share wake-ups, cores that run out, rounds of a disk."""

from __future__ import annotations

from typing import Any

import pytest

from ops.bench import growth_file, model
from ops.bench.model import Costs, Hop, ModelError, Predicted

HOPS = (
    Hop("processor", 4.0, 10.0),
    Hop("handler", 1.0, 10.0),
    Hop("log worker", 1.0, 12.0),
    Hop("generator", 5.0, 10.0),
)
OS = Costs(HOPS, hand_over_us=5.0)
DURABLE = Costs(HOPS, hand_over_us=5.0, round_us=150.0, round_cpu_us=60.0)
MANY_CORES = 1000.0


def rate(costs: Costs, connections: int, cores: float = MANY_CORES) -> float:
    return model.predict(costs, connections, cores).requests_per_s


def test_one_connection_waits_for_each_hop_once() -> None:
    served_us = (4 + 2 * 10) + (1 + 10) + (1 + 12) + (5 + 10) + 5 * 5
    assert rate(OS, 1) == pytest.approx(1e6 / served_us, rel=0.01)
    assert rate(DURABLE, 1) == pytest.approx(1e6 / (served_us + 150), rel=0.01)


def test_many_connections_get_what_the_busiest_hop_can_do() -> None:
    assert rate(OS, 5000) == pytest.approx(1e6 / 5.0, rel=0.05)


def test_cores_limit_all_hops_together() -> None:
    found = model.predict(OS, 1000, 1.0)
    assert model.limit(OS, 1000, 1.0) == "cores"
    assert 0.7e6 < found.requests_per_s * found.cpu_us < 1e6, "never more than there is"
    assert found.cpu_us == pytest.approx(4 + 1 + 1 + 5, rel=0.1), "turns are shared by many"


@pytest.mark.parametrize("costs", [OS, DURABLE], ids=["os", "durable"])
def test_more_connections_and_more_cores_are_never_slower(costs: Costs) -> None:
    rates = [rate(costs, connections, 2.0) for connections in (1, 8, 64, 256, 1000)]
    assert rates == sorted(rates)
    rates = [rate(costs, 256, cores) for cores in (0.5, 1.0, 2.0, 4.0, 16.0)]
    assert rates == sorted(rates)


def test_a_round_is_shared_by_those_that_wait_for_it() -> None:
    few, many = (rate(DURABLE, connections) / rate(OS, connections) for connections in (1, 1000))
    assert few < 0.6
    assert many > 0.9


def test_more_processes_of_the_busiest_kind_help() -> None:
    alone = Costs([hop for hop in HOPS if hop.kind != "generator"], 5.0)
    assert model.limit(alone, 2000, MANY_CORES) == "processors"
    assert rate(alone.with_processes({"processor": 4}), 2000) > 3 * rate(alone, 2000)
    assert alone.with_processes({"log worker": 3}).round_us == 0


def test_log_workers_share_the_device() -> None:
    assert DURABLE.with_processes({"log worker": 3}).round_us == pytest.approx(300.0)


def measured(told: Predicted, series: str, connections: int, costs: Costs) -> dict[str, Any]:
    """Return a point as it would be measured if the model were right."""
    rounds = 1.0 if costs.round_us else 0.0
    cpu = {
        hop.kind: hop.request_us + hop.turn_us * model.VISITS[hop.kind] * shared
        for hop in HOPS[:3]
        for shared in [1.0 if connections == 1 else 0.1]
    }
    cpu["log worker"] += costs.round_cpu_us * rounds
    turns = {hop.kind: model.VISITS[hop.kind] * (1.0 if connections == 1 else 0.1) for hop in HOPS[:3]}
    return {
        "x": connections,
        "series": series,
        "requests_per_s": told.requests_per_s,
        "p50_us": told.mean_us,
        "cpu_us": cpu,
        "turns": turns,
        "generator_us": 15.0 if connections == 1 else 5.0,
        "rounds": rounds,
        "sync_us": costs.round_us,
        "others_cores": 0.0,
    }


def points() -> list[dict[str, Any]]:
    return [
        measured(model.predict(OS, 1, 2.0), "os", 1, OS),
        measured(model.predict(OS, 64, 2.0), "os", 64, OS),
        measured(model.predict(DURABLE, 1, 2.0), "durable", 1, DURABLE),
    ]


def test_costs_are_found_again_in_what_they_predict() -> None:
    costs = model.fitted(points())
    for found, hop in zip(costs["durable"].hops, HOPS, strict=True):
        assert (found.kind, found.request_us) == (hop.kind, pytest.approx(hop.request_us))
        assert found.turn_us == pytest.approx(hop.turn_us)
    assert costs["durable"].hand_over_us == pytest.approx(5.0, rel=0.05)
    assert (costs["durable"].round_us, costs["durable"].round_cpu_us) == (150.0, pytest.approx(60.0))
    assert costs["os"].round_us == 0


def test_a_point_that_is_missing_is_named() -> None:
    with pytest.raises(ModelError, match="64"):
        model.fitted([point for point in points() if point["x"] == 1])


def test_points_that_others_disturbed_are_not_compared() -> None:
    disturbed = points()
    disturbed[1]["others_cores"] = 1.2
    alone, busy, durable = (line.split(" | ")[-1] for line in model.comparison(disturbed, 2)[2:])
    assert alone.startswith("fitted, ")
    assert busy == "fitted, others took 1.2 |"
    assert durable.endswith("% |")


def test_the_measurements_in_the_docs_can_be_compared() -> None:
    curve = growth_file.read()["connections"]["points"]
    assert len(model.comparison(curve, 2)) == len(curve) + 2
