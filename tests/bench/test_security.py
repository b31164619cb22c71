"""The bench of permissions, logins and encryption: each form gets through, and in no other way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from ops.bench import scenarios, security
from ops.bench.brokers import Broker, Mpbroker
from ops.bench.scenarios import SCENARIOS, LoadError, Result, Scenario
from ops.bench.security import Form, Topics
from tests.support.polling import PATIENCE_S

SECONDS, WARMUP_S = 0.1, 0.02
LOADS = {scenario.name: scenario for scenario in SCENARIOS}


@pytest.fixture(scope="module", name="directory")
def _directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bench")


@pytest.fixture(scope="module", name="ours")
def _ours(directory: Path) -> Iterator[list[Form]]:
    scenarios.build_generator()
    with security.fields(directory, others=9) as (only,):
        yield only.forms


@pytest.mark.parametrize("load", ["produce-100B-8", "connect-1"])
def test_each_form_is_measured(
    ours: list[Form], directory: Path, load: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scenarios, "WARMUP_S", WARMUP_S)
    security.measure(ours, [LOADS[load]], directory, SECONDS, 1)
    for form in ours:
        assert isinstance(form.broker, Mpbroker)
        (result,) = form.results[load]
        assert result.requests_per_s > 0
        assert result.errors == 0
    lines = [*security.rows(security.costs(ours, [LOADS[load]]))]
    assert len(lines) == 2 + len(ours)
    assert all(load in line for line in lines[2:])


def test_a_wrong_password_ends_the_run(ours: list[Form], directory: Path) -> None:
    form = ours[-1]
    stranger = replace(form, door=replace(form.door, login=(security.USER, "wrong")), results={})
    with pytest.raises(LoadError, match="the login of bench is refused with error code 58"):
        security.turn(stranger, LOADS["connect-1"], Topics(LOADS["connect-1"]), directory, SECONDS)


def test_another_topic_is_refused(ours: list[Form]) -> None:
    """Check that it is the entries that let the load through."""
    form = next(form for form in ours if form.title == "ACLs")
    form.broker.tree().resume()
    try:
        with pytest.raises(scenarios.BrokerError, match="error code 29"):
            scenarios.create_topic(form.broker, "not-the-bench")
    finally:
        form.broker.tree().pause()


@pytest.mark.parametrize(("load", "count"), [("produce-100B-8", 1), ("produce-900KB-1", 0)])
def test_what_large_produces_write_goes_after_each_turn(ours: list[Form], load: str, count: int) -> None:
    form, topics = ours[0], Topics(LOADS[load])
    with security.awake(form.broker):
        for _ in range(2):
            topics.request(form.broker)
            assert len(topics_of(form.broker)) == 1
            topics.end_turn(form.broker)
            assert len(topics_of(form.broker)) == count
    topics.end()
    with security.awake(form.broker):
        assert topics_of(form.broker) == []


def topics_of(broker: Broker) -> list[str]:
    listed = AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics(timeout=PATIENCE_S)
    return [name for name in listed.topics if name.startswith(security.PREFIX)]


def result_of(rate: float) -> Result:
    return Result(rate, 1.0, 2.0, 3.0, 10.0, 1.0, 0)


def test_ratios_are_those_of_each_turn(ours: list[Form]) -> None:
    some = [replace(ours[0], results={"a": [result_of(100), result_of(200)]})]
    some.append(replace(ours[2], results={"a": [result_of(98), result_of(190)]}))
    load = Scenario("a", "produce", 100, 1)
    assert security.ratios(some[1], some[0], "a", "requests_per_s") == [0.98, 0.95]
    plain, acls = costs = security.costs(some, [load])
    assert (plain.rate_ratio, plain.rates) == (1.0, (1.0, 1.0))
    assert (acls.form, acls.requests_per_s, acls.rate_ratio, acls.rates) == ("ACLs", 144, 0.965, (0.95, 0.98))
    assert "(0.965) | 0.950 to 0.980 |" in [*security.rows(costs)][-1]
    assert [*security.verdict(costs, [load])] == ["ACLs, bound 0.98 of plain: below it: `a` 0.965"]
    some[1].results["a"] = [result_of(98), result_of(196)]
    within = "ACLs, bound 0.98 of plain: all 1 produce and fetch loads within it"
    assert [*security.verdict(security.costs(some, [load]), [load])] == [within]
