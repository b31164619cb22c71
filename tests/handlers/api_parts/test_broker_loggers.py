"""Levels of the broker's loggers, described and altered by clients; and other kinds of resources."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from mpbroker.ipc.calls import ReadSettings, SettingsRead
from mpbroker.ipc.log_levels import LOGGERS, SUBSYSTEMS, LogLevels
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.messages import (
    AlterConfigsRequest,
    DescribeConfigsRequest,
    IncrementalAlterConfigsRequest,
    ListConfigResourcesRequest,
    Message,
)
from mpbroker.supervisor import logs
from ops.bench import frames
from ops.bench.brokers import Mpbroker
from tests.support.client_tools import eventually
from tests.support.handler_rig import Rig, topic_image
from tests.support.metered_client import Client

CONFIGS, ALTER, INCREMENTAL, LIST = 32, 33, 44, 74
TOPIC, BROKER, LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND = 0, 1, 2
REQUESTS = "kafka.request.logger"
UNSUPPORTED_VERSION, INVALID_CONFIG, INVALID_REQUEST = 35, 40, 42
Change = IncrementalAlterConfigsRequest.AlterableConfig
AT_START = {"root": "INFO", REQUESTS: "WARN", **dict.fromkeys(SUBSYSTEMS, "INFO")}
Altered = IncrementalAlterConfigsRequest.AlterConfigsResource


@pytest.fixture(name="ready")
def _ready(rig: Rig) -> Iterator[Rig]:
    """Make a handler whose logger follows the shared words, as in a broker."""
    rig.publish()
    logger = logging.getLogger("mpbroker")
    kind, level = logger.__class__, logger.level
    logger.setLevel(logging.INFO)
    logs.follow(rig.memory.words("log_levels"))
    yield rig
    for name in LOGGERS:
        logging.getLogger(name).__class__ = kind
    logger.setLevel(level)


def describe(rig: Rig, kind: int, name: str, keys: list[str] | None = None) -> Any:
    wanted = DescribeConfigsRequest.DescribeConfigsResource(kind, name, keys)
    (result,) = rig.ask(CONFIGS, 4, DescribeConfigsRequest([wanted])).results
    return result


def levels(rig: Rig) -> dict[str, str]:
    found = describe(rig, LOGGER, "1")
    assert (found.error_code, {one.config_source for one in found.configs}) == (0, {6})
    return {one.name: one.value for one in found.configs}


def alter(
    rig: Rig, *changes: tuple[str, int, str | None], of: str = "1", validate_only: bool = False
) -> tuple[int, str | None]:
    wanted = [Altered(LOGGER, of, [Change(*change) for change in changes])]
    response = rig.ask(INCREMENTAL, 1, IncrementalAlterConfigsRequest(wanted, validate_only))
    (result,) = response.responses
    return result.error_code, result.error_message


def test_levels_are_altered_and_described(ready: Rig) -> None:
    log = logging.getLogger("mpbroker")
    assert levels(ready) == AT_START
    assert alter(ready, ("root", SET, "DEBUG"), validate_only=True) == (0, None)
    assert not log.isEnabledFor(logging.DEBUG)
    assert alter(ready, ("root", SET, "DEBUG")) == (0, None)
    assert levels(ready) == {"root": "DEBUG", REQUESTS: "WARN", **dict.fromkeys(SUBSYSTEMS, "DEBUG")}
    assert log.isEnabledFor(logging.DEBUG)
    assert alter(ready, ("root", SET, "ERROR")) == (0, None)
    assert not log.isEnabledFor(logging.WARNING)
    for level in ("TRACE", "FATAL", "WARN", "INFO"):
        assert alter(ready, ("root", SET, level)) == (0, None)
        assert levels(ready)["root"] == level
    assert [one.name for one in describe(ready, LOGGER, "1", ["root"]).configs] == ["root"]


def test_parts_have_levels_of_their_own_and_inherit_others(ready: Rig) -> None:
    room, folder, other = "mpbroker.coordinator", "mpbroker.coordinator.groups", "mpbroker.log"
    assert alter(ready, (room, SET, "DEBUG")) == (0, None)
    now = levels(ready)
    assert (now[room], now[folder], now[other], now["root"]) == ("DEBUG", "DEBUG", "INFO", "INFO")
    assert alter(ready, (folder, SET, "ERROR"), ("root", SET, "WARN")) == (0, None)
    now = levels(ready)
    assert (now[room], now[folder], now[other]) == ("DEBUG", "ERROR", "WARN")
    for name in (room, folder, other):
        level = getattr(logging, {"WARN": "WARNING"}.get(now[name], now[name]))
        log = logging.getLogger(name)
        assert (log.isEnabledFor(level), log.isEnabledFor(level - 1)) == (True, False)
    assert alter(ready, (folder, DELETE, None), (room, DELETE, None)) == (0, None)
    assert set(levels(ready).values()) == {"WARN"}


def test_the_supervisor_says_what_it_does_not_know(ready: Rig) -> None:
    by_ctl = LogLevels(ready.memory)
    with pytest.raises(ValueError, match="no logger 'mpbroker:nope'; there are kafka"):
        by_ctl.check("mpbroker:nope", "INFO")
    with pytest.raises(ValueError, match="there is no level 'LOUD'; there are TRACE, DEBUG"):
        by_ctl.check("mpbroker.log", "LOUD")
    by_ctl.put("mpbroker.log", "DEBUG")
    assert levels(ready) == {**AT_START, **dict.fromkeys([n for n in SUBSYSTEMS if ".log" in n], "DEBUG")}


def test_requests_are_logged_at_debug(ready: Rig) -> None:
    """Check that this is the same switch as that of `mpbroker ctl request-log`."""
    for level, on in (("TRACE", True), ("INFO", False), ("DEBUG", True)):
        assert alter(ready, (REQUESTS, SET, level)) == (0, None)
        assert (levels(ready)[REQUESTS], ready.handler.turn.logs_requests) == (level, on)
    assert alter(ready, (REQUESTS, DELETE, None)) == (0, None)
    assert (levels(ready)[REQUESTS], ready.handler.turn.logs_requests) == ("WARN", False)
    by_ctl = LogLevels(ready.memory)
    by_ctl.log_requests(True)
    assert levels(ready)[REQUESTS] == "DEBUG"
    by_ctl.log_requests(False)
    assert levels(ready)[REQUESTS] == "WARN"


@pytest.mark.parametrize(
    ("change", "code", "says"),
    [
        (("kafka.server.KafkaApis", SET, "INFO"), INVALID_CONFIG, "Logger kafka.server.KafkaApis does not"),
        (("nope", DELETE, None), INVALID_CONFIG, "Logger nope does not exist!"),
        (("root", SET, "LOUD"), INVALID_CONFIG, "levels are DEBUG, ERROR, FATAL, INFO, TRACE, WARN"),
        (("root", SET, "info"), INVALID_CONFIG, "Cannot set the log level of root to info"),
        (("root", DELETE, None), INVALID_REQUEST, "Removing the log level of the root logger is not allowed"),
        (("root", APPEND, "INFO"), INVALID_REQUEST, "APPEND operation is not allowed for the BROKER_LOGGER"),
    ],
)
def test_levels_that_are_refused(
    ready: Rig, change: tuple[str, int, str | None], code: int, says: str
) -> None:
    """Check that all changes of a resource are made, or none."""
    refused, why = alter(ready, (REQUESTS, SET, "DEBUG"), change)
    assert refused == code
    assert says in (why or "")
    assert levels(ready) == AT_START


@pytest.mark.parametrize("name", ["2", "x", ""])
def test_loggers_of_another_broker(ready: Rig, name: str) -> None:
    assert alter(ready, ("root", SET, "DEBUG"), of=name)[0] == INVALID_REQUEST
    assert describe(ready, LOGGER, name).error_code == INVALID_REQUEST


def test_levels_are_not_replaced_by_the_older_api(ready: Rig) -> None:
    """Check that AlterConfigs is refused, as in Kafka: it would reset all levels that it does not name."""
    resource = AlterConfigsRequest.AlterConfigsResource
    change = AlterConfigsRequest.AlterableConfig("root", "DEBUG")
    (result,) = ready.ask(ALTER, 2, AlterConfigsRequest([resource(LOGGER, "1", [change])])).responses
    assert result.error_code == INVALID_REQUEST
    assert "IncrementalAlterConfigs only" in result.error_message
    assert levels(ready)["root"] == "INFO"


def test_a_kind_that_does_not_exist(ready: Rig) -> None:
    wanted = [Altered(99, "x", [Change("consumer.session.timeout.ms", SET, "1")])]
    (result,) = ready.ask(INCREMENTAL, 1, IncrementalAlterConfigsRequest(wanted)).responses
    assert (result.error_code, "99" in result.error_message) == (INVALID_REQUEST, True)
    assert describe(ready, 99, "x").error_code == INVALID_REQUEST


def ask_with_settings(rig: Rig, api_key: int, body: Message, settings: SettingsRead) -> Any:
    """Return the response to a request for which the coordinator reads settings."""
    call, asked = rig.asked(api_key, 1, body)
    assert isinstance(asked, ReadSettings)
    rig.coordinator.answer(call, settings)
    rig.work_off()
    return rig.answer(api_key, 1)


@pytest.mark.parametrize("kind", [GROUP, CLIENT_METRICS])
def test_what_the_coordinator_has_is_described(ready: Rig, kind: int) -> None:
    """Also of a group that does not exist, as in Kafka."""
    key = "consumer.session.timeout.ms" if kind == GROUP else "interval.ms"
    for name, own, error in (("x", {key: "50000"}, 0), ("x", {}, 0), ("", {}, INVALID_REQUEST)):
        body = DescribeConfigsRequest([DescribeConfigsRequest.DescribeConfigsResource(kind, name, None)])
        (found,) = ask_with_settings(ready, CONFIGS, body, SettingsRead([(kind, name, own)])).results
        assert found.error_code == error
        values = {one.name: one.value for one in found.configs}
        assert error or values[key] == own.get(key, "45000" if kind == GROUP else "300000")


def test_other_processes_follow_a_level(broker: Mpbroker) -> None:
    """Set a level at a handler, and check that a processor then logs closed connections at DEBUG."""

    def come_and_go() -> bool:
        frames.advertised_apis(broker.address, timeout_s=5)
        return " DEBUG [processor" in broker.output()

    assert not come_and_go()
    with contextlib.closing(Client(broker)) as client:
        wanted = Altered(LOGGER, "1", [Change("root", SET, "DEBUG")])
        key = ApiKey.INCREMENTAL_ALTER_CONFIGS
        (result,) = client.call(key, 1, IncrementalAlterConfigsRequest([wanted])).responses
    assert result.error_code == 0
    eventually(come_and_go, "a processor logs at DEBUG")


@pytest.mark.parametrize(
    ("kinds", "says"), [([TOPIC, BROKER], [(BROKER, "1"), (TOPIC, "orders")]), ([TOPIC, 99], None)]
)
def test_what_has_settings_is_listed(rig: Rig, kinds: list[int], says: list[tuple[int, str]] | None) -> None:
    rig.publish(topic_image("orders", 1))
    response = rig.ask(LIST, 1, ListConfigResourcesRequest(kinds))
    assert response.error_code == (UNSUPPORTED_VERSION if says is None else 0)
    assert [(one.resource_type, one.resource_name) for one in response.config_resources] == (says or [])


@pytest.mark.parametrize(
    ("kinds", "says"),
    [
        ([], [(LOGGER, "1"), (BROKER, "1"), (TOPIC, "orders"), (GROUP, "g"), (CLIENT_METRICS, "s")]),
        ([GROUP], [(GROUP, "g")]),
        ([TOPIC, CLIENT_METRICS], [(TOPIC, "orders"), (CLIENT_METRICS, "s")]),
    ],
)
def test_what_the_coordinator_has_is_listed(rig: Rig, kinds: list[int], says: list[tuple[int, str]]) -> None:
    rig.publish(topic_image("orders", 1))
    kept = SettingsRead([(GROUP, "g", {"a": "1"}), (CLIENT_METRICS, "s", {"b": "2"})])
    response = ask_with_settings(rig, LIST, ListConfigResourcesRequest(kinds), kept)
    assert [(one.resource_type, one.resource_name) for one in response.config_resources] == says
