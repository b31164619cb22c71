"""The broker's settings, altered by clients while it runs: what counts, and what holds after a start."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.messages import AlterConfigsRequest
from mpbroker.protocol.numbers import ConfigResourceType
from ops.bench import frames
from tests.support.altered_settings import (
    DEFAULT,
    DYNAMIC_BROKER,
    DYNAMIC_DEFAULT,
    DYNAMIC_TOPIC,
    OF_ALL,
    OF_BROKER,
    STATIC,
    alter,
    ask,
    settings_of,
)
from tests.support.client_tools import eventually
from tests.support.configured_tree import FIRST, Configured, control, pids
from tests.support.real_brokers import create_topic, served, stop_cleanly

TEXT = FIRST + "max.connections=1000\n"
OK = (0, None)
INVALID_REQUEST, NOT_CONTROLLER = 42, 41
MESSAGE_TOO_LARGE = 10


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Configured]:
    with served(Configured(tmp_path / "broker", text=TEXT)) as made:
        yield made


def value_of(broker: Configured, key: str) -> str | None:
    return settings_of(broker, OF_BROKER)[key].value


def workers(broker: Configured, kind: str) -> int:
    return sum(1 for name in pids(broker) if name.startswith(kind))


def until_settled(broker: Configured) -> None:
    """Until nobody comes, goes or is replaced: reloads wait for each other."""
    assert control(broker).call("reload")["changed"] == []


def refusal_of(broker: Configured, bytes_: int) -> int:
    """Return the error of a produce of this size to the topic."""
    with frames.connected(broker.address) as connection:
        return frames.exchange(connection, frames.produce("topic", 1, bytes_))[0]


def test_what_is_altered_counts_in_kafkas_order(broker: Configured) -> None:
    assert alter(broker, OF_ALL, max_connections="700", log_cleaner_backoff_ms="111") == OK
    assert alter(broker, OF_BROKER, max_connections="600") == OK
    told = settings_of(broker, OF_BROKER)
    assert (told["max.connections"].value, told["max.connections"].read_only) == ("600", False)
    assert told["num.partitions"].read_only
    assert told["max.connections"].synonyms == [
        ("max.connections", "600", DYNAMIC_BROKER),
        ("max.connections", "700", DYNAMIC_DEFAULT),
        ("max.connections", "1000", STATIC),
        ("max.connections", "2147483647", DEFAULT),
    ]
    of_all = settings_of(broker, OF_ALL)
    assert {name: (one.value, one.source) for name, one in of_all.items()} == {
        "max.connections": ("700", DYNAMIC_DEFAULT),
        "log.cleaner.backoff.ms": ("111", DYNAMIC_DEFAULT),
    }
    assert alter(broker, OF_BROKER, max_connections=None) == OK
    assert value_of(broker, "max.connections") == "700"
    assert alter(broker, OF_ALL, max_connections=None) == OK
    entry = settings_of(broker, OF_BROKER)["max.connections"]
    assert (entry.value, entry.source) == ("1000", STATIC)
    assert settings_of(broker, OF_ALL).keys() == {"log.cleaner.backoff.ms"}
    assert alter(broker, OF_BROKER, max_connections="500", validate_only=True) == OK
    assert settings_of(broker, OF_BROKER)["max.connections"].source == STATIC


def test_all_of_a_broker_is_replaced(broker: Configured) -> None:
    """AlterConfigs names everything that is to be altered."""
    assert alter(broker, OF_BROKER, max_connections="500", log_cleaner_backoff_ms="111") == OK
    of = AlterConfigsRequest
    resource = of.AlterConfigsResource(
        ConfigResourceType.BROKER, OF_BROKER, [of.AlterableConfig("log.cleaner.backoff.ms", "222")]
    )
    (answer,) = ask(broker, ApiKey.ALTER_CONFIGS, 2, of([resource])).responses
    assert answer.error_code == 0
    told = settings_of(broker, OF_BROKER)
    altered = {name: one.value for name, one in told.items() if one.source == DYNAMIC_BROKER}
    assert altered == {"log.cleaner.backoff.ms": "222"}


def test_defaults_of_topics_hold_in_topics_without_their_own(broker: Configured) -> None:
    create_topic(broker.bootstrap, "topic", 1)
    create_topic(broker.bootstrap, "own", 1, {"max.message.bytes": "5000"})
    before = pids(broker)
    assert refusal_of(broker, 4000) == 0
    assert alter(broker, OF_ALL, message_max_bytes="3000") == OK
    until_settled(broker)
    assert refusal_of(broker, 4000) == MESSAGE_TOO_LARGE
    # The handlers, who have tables of it, were replaced one after the other.
    after = pids(broker)
    assert {name for name in before if before[name] != after[name]} == {"handler 0", "handler 1"}
    topic = settings_of(broker, "topic", ConfigResourceType.TOPIC)["max.message.bytes"]
    assert (topic.value, topic.source) == ("3000", DYNAMIC_DEFAULT)
    assert topic.synonyms[0] == ("message.max.bytes", "3000", DYNAMIC_DEFAULT)
    own = settings_of(broker, "own", ConfigResourceType.TOPIC)["max.message.bytes"]
    assert (own.value, own.source) == ("5000", DYNAMIC_TOPIC)
    until_settled(broker)
    assert workers(broker, "handler") == 2
    assert alter(broker, OF_ALL, message_max_bytes=None) == OK
    until_settled(broker)
    assert refusal_of(broker, 4000) == 0


def test_it_holds_after_a_start_and_above_the_file(broker: Configured) -> None:
    create_topic(broker.bootstrap, "topic", 1)
    assert alter(broker, OF_ALL, message_max_bytes="3000") == OK
    assert alter(broker, OF_BROKER, num_io_threads="4", num_network_threads="1", max_connections="600") == OK
    until_settled(broker)
    assert (workers(broker, "handler"), workers(broker, "processor")) == (4, 1)
    assert alter(broker, OF_BROKER, num_io_threads="8") == OK
    until_settled(broker)
    stop_cleanly(broker)
    broker.start()
    assert (workers(broker, "handler"), workers(broker, "processor")) == (8, 1)
    assert refusal_of(broker, 4000) == MESSAGE_TOO_LARGE
    assert value_of(broker, "max.connections") == "600"
    # The file is read again: it lies beneath.
    answer = broker.reload(FIRST + "max.connections=700\nqueued.max.requests=77\nnum.io.threads=3\n")
    assert answer["changed"] == ["queued.max.requests"]
    told = settings_of(broker, OF_BROKER)["max.connections"]
    assert told.value == "600"
    assert told.synonyms[1] == ("max.connections", "700", STATIC)
    assert workers(broker, "handler") == 8
    assert alter(broker, OF_BROKER, max_connections=None) == OK
    assert value_of(broker, "max.connections") == "700"
    broker.kill()
    broker.start()
    assert value_of(broker, "max.connections") == "700"
    assert value_of(broker, "message.max.bytes") == "3000"


def test_workers_go_by_the_rule_and_the_last_word_counts(broker: Configured) -> None:
    code, text = alter(broker, OF_BROKER, num_io_threads="17")
    assert code == INVALID_REQUEST
    said = "cannot resize handlers from 2 to 17: one step may go from half of that (1) to "
    assert (text or "").startswith(said)
    # Nothing of a change that is refused remains.
    assert alter(broker, OF_BROKER, num_io_threads="17", max_connections="5")[0] == INVALID_REQUEST
    assert settings_of(broker, OF_BROKER)["max.connections"].source == STATIC
    assert alter(broker, OF_BROKER, num_io_threads="4") == OK
    until_settled(broker)
    assert control(broker).call("resize", handlers=3) == {"handlers": 3, "processors": 2}
    assert alter(broker, OF_BROKER, max_connections="500") == OK
    assert workers(broker, "handler") == 3
    assert alter(broker, OF_BROKER, num_io_threads="2") == OK  # as the file says
    until_settled(broker)
    assert workers(broker, "handler") == 2
    assert control(broker).call("resize", handlers=4) == {"handlers": 4, "processors": 2}
    assert alter(broker, OF_BROKER, num_io_threads=None) == OK
    until_settled(broker)
    assert workers(broker, "handler") == 2
    # Nobody has to wait for a step to end before the next one.
    for number in ("4", "7", "3"):
        assert alter(broker, OF_BROKER, num_io_threads=number) == OK
    until_settled(broker)
    assert workers(broker, "handler") == 3


@pytest.mark.parametrize(
    ("name", "values", "says"),
    [
        (OF_ALL, {"max_connections": "many"}, "Invalid value many for configuration max.connections: Not a"),
        (
            OF_ALL,
            {"log_cleaner_max_compaction_lag_ms": "5", "log_cleaner_min_compaction_lag_ms": "6"},
            "above",
        ),
        (OF_BROKER, {"ssl_key_password": "geheim"}, "The metadata log keeps no passwords"),
        (OF_ALL, {"max_connections_per_ip_overrides": "localhost:3"}, "give addresses"),
        (
            OF_ALL,
            {"group_consumer_assignment_interval_ms": "15001"},
            "assignment.interval.ms=15001 must be less than or equal to group.consumer.max.assignment.inter",
        ),
        (OF_ALL, {"group_consumer_session_timeout_ms": "50000"}, "Cannot update these configs dynamically"),
        ("2", {"max_connections": "3"}, "Unexpected broker id, expected 1 or empty string, but received 2"),
    ],
)
def test_refused(shared: Configured, name: str, values: dict[str, str], says: str) -> None:
    code, text = alter(shared, name, **values)
    assert code == INVALID_REQUEST
    assert says in (text or "")
    assert "geheim" not in (text or "") + shared.output()
    assert settings_of(shared, OF_ALL) == {}
    assert settings_of(shared, OF_BROKER)["max.connections"].source == DEFAULT


@pytest.fixture(name="shared", scope="module")
def _shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Configured]:
    with served(Configured(tmp_path_factory.mktemp("shared") / "broker")) as made:
        yield made


def test_the_coordinator_dies_and_nothing_is_forgotten(broker: Configured) -> None:
    """Its successor tells the same again: nothing changes twice."""
    assert alter(broker, OF_BROKER, message_max_bytes="3000") == OK
    until_settled(broker)
    before = pids(broker)
    os.kill(before["coordinator"], signal.SIGKILL)
    # An admin client tries again by itself.
    eventually(lambda: alter(broker, OF_BROKER, max_connections="500") == OK, "the successor alters")
    after = pids(broker)
    assert value_of(broker, "message.max.bytes") == "3000"
    assert value_of(broker, "max.connections") == "500"
    assert {n for n in before if before[n] != after.get(n)} == {"coordinator"}


class Alteration(threading.Thread):
    """One that takes its time."""

    def __init__(self, broker: Configured, **values: str | None) -> None:
        super().__init__()
        self.outcome: tuple[int, str | None] | None = None
        self._broker, self._values = broker, values
        self.start()

    def run(self) -> None:
        self.outcome = alter(self._broker, OF_BROKER, **self._values)


@pytest.mark.parametrize("dies", ["cleaner", "coordinator"])
def test_somebody_does_not_follow_and_dies(broker: Configured, dies: str) -> None:
    """The cleaner stands still: nobody is told that it is done before it follows or is gone. If the
    coordinator goes meanwhile, what it has recorded counts all the same.
    """
    before = pids(broker)
    os.kill(before["cleaner"], signal.SIGSTOP)
    alteration = Alteration(broker, log_cleaner_backoff_ms="123")
    eventually(lambda: value_of(broker, "log.cleaner.backoff.ms") == "123", "the others follow")
    assert alteration.is_alive()
    os.kill(before[dies], signal.SIGKILL)
    if dies == "coordinator":
        os.kill(before["cleaner"], signal.SIGCONT)
    alteration.join(60)
    assert alteration.outcome is not None
    assert alteration.outcome[0] in ((0,) if dies == "cleaner" else (0, NOT_CONTROLLER))
    eventually(lambda: alter(broker, OF_BROKER, max_connections="500") == OK, "it goes on")
    assert value_of(broker, "log.cleaner.backoff.ms") == "123"
    after = pids(broker)
    assert {name for name in before if before[name] != after[name]} == {dies}


def test_altered_while_everybody_dies(broker: Configured) -> None:
    """Whoever comes back has what counts then."""
    for number, victim in enumerate(
        ("handler 0", "processor 1", "log 0", "cleaner", "acceptor", "handler 1")
    ):
        dead = pids(broker)[victim]
        os.kill(dead, signal.SIGKILL)
        wanted = str(600 + number)

        def is_altered(wanted: str = wanted) -> bool:
            try:
                return alter(broker, OF_BROKER, max_connections=wanted) == OK
            except OSError:
                return False  # the connection was on the dead processor

        eventually(is_altered, "it is altered")

        def is_back(victim: str = victim, dead: int = dead) -> bool:
            return pids(broker).get(victim, dead) not in (0, dead)

        eventually(is_back, "it is back")
        assert {value_of(broker, "max.connections") for _ in range(6)} == {wanted}


def test_a_file_that_contradicts_what_was_altered_holds_alone(broker: Configured) -> None:
    """Until one of them is mended."""
    assert alter(broker, OF_ALL, log_cleaner_max_compaction_lag_ms="100", message_max_bytes="3000") == OK
    until_settled(broker)
    stop_cleanly(broker)
    broker.write(TEXT + "log.cleaner.min.compaction.lag.ms=200\n")
    broker.start()
    assert "settings that clients altered have no effect" in broker.output()
    assert value_of(broker, "message.max.bytes") == "100000"
    assert alter(broker, OF_ALL, log_cleaner_max_compaction_lag_ms=None) == OK
    until_settled(broker)
    assert value_of(broker, "message.max.bytes") == "3000"
    assert value_of(broker, "log.cleaner.min.compaction.lag.ms") == "200"


def test_an_altered_interval_stays_within_the_bounds_of_the_file(broker: Configured) -> None:
    interval, bound = "group.consumer.assignment.interval.ms", "group.consumer.max.assignment.interval.ms"
    assert alter(broker, OF_ALL, group_consumer_assignment_interval_ms="9000", max_connections="500") == OK
    until_settled(broker)
    answer = broker.reload(f"{TEXT}{bound}=6000\n")
    assert (answer["changed"], value_of(broker, interval)) == ([interval, bound], "6000")
    warning = f"{interval}=9000 is not between 0 and 6000: 6000 is used"
    assert answer["warnings"] == [warning]
    stop_cleanly(broker)
    broker.write(f"{TEXT}{bound}=5000\n")
    broker.start()
    assert f"{interval}=9000 is not between 0 and 5000: 5000 is used" in broker.output()
    assert (value_of(broker, interval), value_of(broker, "max.connections")) == ("5000", "500")
    assert broker.reload(TEXT)["warnings"] == []
    assert value_of(broker, interval) == "9000"
