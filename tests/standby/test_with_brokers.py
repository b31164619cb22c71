"""A broker and its standby, on one object store: clients that know both go on when either of them goes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from mpbroker.remote.ledger.state import RemoteState
from mpbroker.remote.store.directory import DirectoryStore
from mpbroker.storage.names import FENCED
from ops.bench.brokers import Mpbroker, running
from shm.clock import wall_ms
from tests.support.client_tools import eventually
from tests.support.committed_offsets import UNCOMMITTED, messages
from tests.support.forms import long_only
from tests.support.ledger_parts import read
from tests.support.polling import PATIENCE_S
from tests.support.produced import produce

TOPIC = "t"


class Pair:
    """Brokers 1 and 2, each in a directory of its own."""

    def __init__(self, root: Path, stack: ExitStack, acks: str) -> None:
        (root / "store").mkdir()
        self.store = DirectoryStore(root / "store")
        self._stack = stack
        self._settings = (
            "remote.log.storage.system.enable=true",
            f"mpbroker.remote.url=file://{root / 'store'}",
            "mpbroker.remote.lease.ms=2000",
            "mpbroker.remote.commit.interval.ms=10",
            "mpbroker.remote.checkpoint.interval.ms=1000",
            f"mpbroker.remote.acks={acks}",
            "offsets.topic.num.partitions=1",
        )
        self.brokers = {number: Mpbroker(root / str(number)) for number in (1, 2)}
        self.bootstrap = ",".join(one.bootstrap for one in self.brokers.values())

    def start(self, number: int, *flags: str) -> Mpbroker:
        broker = self.brokers[number]
        words = [word for one in (f"node.id={number}", *self._settings) for word in ("-o", one)]
        broker.flags = [*flags, *words]
        self._stack.enter_context(running(broker))
        return broker

    def state(self) -> RemoteState:
        return read(self.store).state

    def stands_by(self, number: int) -> None:
        """Wait until a broker follows, and its clients are told of both."""
        at: dict[str, str | int | float | bool] = {"bootstrap.servers": self.brokers[number].bootstrap}
        eventually(lambda: number in self.state().standbys, "the ledger names the standby")
        eventually(
            lambda: len(AdminClient(at).list_topics(timeout=PATIENCE_S).brokers) == 2, "clients know both"
        )

    def leads(self, number: int, generation: int) -> None:
        eventually(lambda: read(self.store).generation == generation, "the ledger has another owner")
        leader = self.state().leader
        assert leader is not None
        assert leader.broker_id == number

    def cut(self) -> None:
        """Wait for a cut that begins now."""
        now_ms = wall_ms()
        eventually(lambda: any(one.event.taken_ms > now_ms for one in self.state().cuts), "a cut is made")

    def values(self) -> list[str]:
        return [(one.value() or b"").decode() for one in messages(self.bootstrap, TOPIC, [0], UNCOMMITTED)]


@pytest.fixture
def pair(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Pair]:
    with ExitStack() as stack:
        yield Pair(tmp_path, stack, getattr(request, "param", "local"))


def test_a_standby_takes_over_from_a_killed_broker_and_clients_go_on(pair: Pair) -> None:
    owner = pair.start(1)
    admin = AdminClient({"bootstrap.servers": owner.bootstrap})
    admin.create_topics([NewTopic(TOPIC, 1)])[TOPIC].result(PATIENCE_S)
    pair.start(2, "--standby")
    pair.stands_by(2)
    producer = Producer({"bootstrap.servers": pair.bootstrap})
    for number in range(10):
        producer.produce(TOPIC, str(number), partition=0)
    assert producer.flush(PATIENCE_S) == 0
    pair.cut()
    owner.kill()
    for number in range(10, 20):
        producer.produce(TOPIC, str(number), partition=0)
    assert producer.flush(PATIENCE_S) == 0
    pair.leads(2, generation=2)
    assert pair.values() == [str(number) for number in range(20)]


@long_only("a lost broker comes back as standby, and the other one hands over")
@pytest.mark.parametrize("pair", ["local", "ledger"], indirect=True)
def test_brokers_change_places_again_and_again(pair: Pair) -> None:
    produce(pair.start(1).bootstrap, TOPIC, map(str, range(10)))
    pair.start(2, "--standby")
    pair.stands_by(2)
    pair.cut()
    pair.brokers[1].kill()
    produce(pair.bootstrap, TOPIC, map(str, range(10, 20)), enable_idempotence=True)
    pair.leads(2, generation=2)
    # A plain start: it finds that another one leads.
    pair.start(1)
    pair.stands_by(1)
    assert (pair.brokers[1].log_dir / FENCED / "1" / f"{TOPIC}-0").is_dir()
    produce(pair.bootstrap, TOPIC, map(str, range(20, 30)), enable_idempotence=True)
    pair.brokers[2].stop()
    produce(pair.bootstrap, TOPIC, map(str, range(30, 40)), enable_idempotence=True)
    pair.leads(1, generation=3)
    pair.start(2, "--standby")
    pair.stands_by(2)
    assert not (pair.brokers[2].log_dir / FENCED).exists()
    pair.brokers[1].kill()
    pair.leads(2, generation=4)
    eventually(lambda: len(pair.values()) >= 40, "all is there")
    assert pair.values() == [str(number) for number in range(40)]
