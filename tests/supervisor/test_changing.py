"""Changes of a running broker: altered settings, the file beneath them, and one change at a time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from mpbroker.config.altered import Altered
from mpbroker.config.broker import BrokerConfig
from mpbroker.config.load import Loaded, load
from mpbroker.ipc import topology
from mpbroker.ipc.broker_settings import BrokerSettings
from mpbroker.ipc.bulletin import BulletinPublisher
from mpbroker.ipc.process import FatalError
from mpbroker.ipc.topology import SUPERVISOR, SharedMemory
from mpbroker.supervisor.changing import AlteredSettings, Changing
from mpbroker.supervisor.config_diff import ConfigDiff, ReloadError
from mpbroker.supervisor.notify import Notifier


class Coordinator:
    """Its end of the bulletin; each one begins with a base, as a successor does."""

    def __init__(self, memory: SharedMemory) -> None:
        block, acks = memory.private.block("brokers"), memory.words("broker_acks")
        self._publisher = BulletinPublisher(block, acks, lambda: [SUPERVISOR])
        self._told = False

    def tell(self, version: int, **brokers: dict[str, str]) -> None:
        """`all` is the resource of all brokers, `one` is broker 1."""
        names = {"all": "", "one": "1", "other": "2"}
        news = BrokerSettings(version, {names[name]: texts for name, texts in brokers.items()})
        send = self._publisher.publish_delta if self._told else self._publisher.publish_base
        send(msgspec.msgpack.encode(news))
        self._told = True


def test_what_is_told_twice_is_news_once(memory: SharedMemory) -> None:
    altering, coordinator = AlteredSettings(memory, node_id=1), Coordinator(memory)
    done = memory.words("brokers_done")
    assert not altering.poll()
    coordinator.tell(0)
    assert not altering.poll()
    texts = {"max.connections": "5"}
    coordinator.tell(1, all={"max.connections": "4"}, one={}, other={"max.connections": "9"})
    coordinator.tell(2, all={"max.connections": "4"}, one=texts)
    assert altering.poll()
    assert altering.is_pending
    assert altering.now == Altered(texts, {"max.connections": "4"})
    assert done.load(0) == 0
    altering.acknowledge()
    assert done.load(0) == 2
    altering.is_pending = False
    Coordinator(memory).tell(2, all={"max.connections": "4"}, one=texts)
    assert not altering.poll()
    assert not altering.is_pending
    coordinator = Coordinator(memory)
    coordinator.tell(3, all={"max.connections": "4"})
    assert altering.poll()
    assert altering.now == Altered({}, {"max.connections": "4"})


def test_what_cannot_be_used_is_told_and_left_out(
    memory: SharedMemory, caplog: pytest.LogCaptureFixture
) -> None:
    altering = AlteredSettings(memory, node_id=1)
    Coordinator(memory).tell(1, one={"max.connections": "5", "num.partitions": "2"})
    assert altering.poll()
    assert altering.now == Altered({"max.connections": "5"})
    assert "num.partitions cannot be altered" in caplog.text


# ---- what a reload makes of it


class Room:
    """A configuration file as a list of overrides, and a broker that follows at once."""

    def __init__(self, *file: str) -> None:
        self.file = list(file)
        self.now = self._load().config
        self.diff = ConfigDiff(self.now, self._load)

    def _load(self) -> Loaded:
        return load(None, self.file)

    def reread(self, altered: Altered) -> list[str]:
        return self._done(altered, reread=True)

    def altered(self, altered: Altered) -> list[str]:
        return self._done(altered, reread=False)

    def _done(self, altered: Altered, *, reread: bool) -> list[str]:
        read = self.diff.reread if reread else self.diff.altered
        changes = read(self.now, altered)
        self.now = changes.config
        self.diff.done(changes)
        return changes.names


def test_the_file_lies_beneath_and_is_not_read_unasked() -> None:
    room = Room("max.connections=7")
    altered = Altered({"max.connections": "5"})
    assert room.altered(altered) == ["max.connections"]
    room.file = ["max.connections=8", "num.partitions=3", "log.workers=2"]
    assert room.altered(altered) == []
    assert (room.now.max_connections, room.now.num_partitions) == (5, 1)
    assert room.reread(altered) == ["num.partitions"]
    assert (room.now.max_connections, room.now.num_partitions) == (5, 3)
    assert room.altered(Altered()) == ["max.connections"]
    # What cannot change while the broker runs is as it was, also beneath.
    assert (room.now.max_connections, room.now.log_workers) == (8, 1)
    assert room.now.altered == Altered()


def test_an_altered_number_of_workers_counts_even_if_the_file_says_the_same() -> None:
    room = Room("num.io.threads=2")
    altered = Altered({"num.io.threads": "2"})
    changes = room.diff.altered(room.now, altered)
    assert changes.handlers == 2  # `ctl resize` may have made it another one
    assert changes.config.resizing_to == {"num.io.threads": 2}
    room.diff.done(changes)
    assert room.diff.altered(room.now, altered).handlers is None
    assert room.diff.reread(room.now, altered).handlers is None
    assert room.diff.altered(room.now, Altered()).handlers == 2


def test_a_file_that_contradicts_what_was_altered_changes_nothing() -> None:
    room = Room()
    altered = Altered({"log.cleaner.max.compaction.lag.ms": "100"})
    room.altered(altered)
    room.file = ["log.cleaner.min.compaction.lag.ms=200", "num.partitions=3"]
    with pytest.raises(ReloadError, match=r"compaction\.lag\.ms=200 is above"):
        room.reread(altered)
    assert room.now.num_partitions == 1
    assert room.reread(Altered()) == [
        "log.cleaner.max.compaction.lag.ms",
        "log.cleaner.min.compaction.lag.ms",
        "num.partitions",
    ]


def test_without_a_file_there_is_still_something_beneath() -> None:
    diff = ConfigDiff(BrokerConfig(max_connections=7), None)
    now = diff.altered(BrokerConfig(max_connections=7), Altered({}, {"max.connections": "5"})).config
    assert now.max_connections == 5


# ---- one change at a time


class Listeners:
    """The members that `Changing` uses of listeners. No change affects a listener."""

    now: tuple[()] = ()
    processor = None

    def role_problem(self, _: BrokerConfig) -> None:
        return None

    def changed_security(self, _: BrokerConfig) -> dict[int, Any]:
        return {}

    def follow(self, config: BrokerConfig, _: dict[int, Any], tree: Any) -> None:
        tree.config = config


def changing_of(memory: SharedMemory, *file: str) -> tuple[Changing, Any]:
    """Return a state machine over a configuration file as a list of overrides, and its tree."""
    config = load(None, []).config
    tree: Any = SimpleNamespace(config=config, memory=memory, children={})
    listeners: Any = Listeners()
    diff = ConfigDiff(config, lambda: load(None, list(file)))
    return Changing(tree, listeners, diff, AlteredSettings(memory, node_id=1), Notifier()), tree


def test_a_resize_is_refused_while_processes_acknowledge_a_reload(
    memory: SharedMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commands are served meanwhile. Begun then, its answer would be lost with it."""
    changing, tree = changing_of(memory, "num.partitions=3")
    refused: list[str] = []

    def publish(_config: bytes, _tree: object) -> None:
        with pytest.raises(FatalError) as error:
            changing.resize(tree.config.num_io_threads, None)
        refused.append(str(error.value))

    monkeypatch.setattr("mpbroker.supervisor.changing.publish", publish)
    answers: list[dict[str, Any]] = []
    for _ in range(2):
        changing.reload().send_with(answers.append)
    changing.advance()
    assert refused == ["a change is under way (reload); ask again when it is done"], "one reload for both"
    assert [answer["changed"] for answer in answers] == [["num.partitions"]] * 2
    assert (tree.config.num_partitions, changing.under_way) == (3, "")


def test_a_reload_waits_for_the_end_of_a_resize(
    memory: SharedMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    changing, tree = changing_of(memory, "num.partitions=3")
    published: list[int] = []
    monkeypatch.setattr("mpbroker.supervisor.changing.publish", lambda *_: published.append(1))
    resized: list[dict[str, Any]] = []
    reloaded: list[dict[str, Any]] = []
    handlers = tree.config.num_io_threads
    leaving = range(handlers // 2, handlers)
    for number in leaving:
        tree.children[topology.handler(number)] = SimpleNamespace(serves=True)
    tree.retire = lambda _: None
    changing.resize(handlers // 2, None).send_with(resized.append)
    changing.reload().send_with(reloaded.append)
    changing.advance()
    assert changing.under_way == f"resizing handlers from {handlers} to {handlers // 2}"
    assert (resized, reloaded, published) == ([], [], [])
    tree.children.clear()
    changing.advance()
    assert resized == [{"handlers": handlers // 2, "processors": tree.config.num_network_threads}]
    assert reloaded == []
    changing.advance()
    assert [answer["changed"] for answer in reloaded] == [["num.partitions"]]
    assert (tree.config.num_partitions, tree.config.num_io_threads) == (3, handlers // 2)
