"""Two brokers on one object store, of which one leads and the other one stands by."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from pathlib import Path

from confluent_kafka.admin import AdminClient

from mpbroker.handlers.fetch.preferred_replicas import MARGIN_MS
from mpbroker.remote.ledger.reader import LedgerReader
from mpbroker.remote.ledger.registrations import read_registrations
from mpbroker.remote.ledger.state import RemoteState
from mpbroker.remote.store.directory import DirectoryStore
from ops.bench.brokers import Mpbroker, running
from shm.clock import wall_ms
from tests.support.client_tools import eventually
from tests.support.committed_offsets import UNCOMMITTED, messages
from tests.support.polling import PATIENCE_S

TOPIC = "t"


class Pair:
    """Brokers 1 and 2, each in a directory of its own."""

    def __init__(self, root: Path, stack: ExitStack, acks: str, *more: str) -> None:
        """`more`: settings of both, as NAME=VALUE."""
        self.store_dir = root / "store"
        self.store_dir.mkdir()
        self.store = DirectoryStore(self.store_dir)
        # Who waits for an entry reads those that are new: there are thousands.
        self._reader, self._reading = LedgerReader(self.store), threading.Lock()
        self._stack = stack
        self._settings = (
            "remote.log.storage.system.enable=true",
            f"mpbroker.remote.url=file://{self.store_dir}",
            "mpbroker.remote.lease.ms=2000",
            "mpbroker.remote.commit.interval.ms=10",
            "mpbroker.remote.checkpoint.interval.ms=1000",
            f"mpbroker.remote.acks={acks}",
            "offsets.topic.num.partitions=1",
            *more,
        )
        self.brokers = {number: Mpbroker(root / str(number)) for number in (1, 2)}
        self.bootstrap = ",".join(one.bootstrap for one in self.brokers.values())

    def start(self, number: int, *flags: str) -> Mpbroker:
        broker = self.brokers[number]
        words = [word for one in (f"node.id={number}", *self._settings) for word in ("-o", one)]
        broker.flags = [*flags, *words]
        self._stack.enter_context(running(broker))
        return broker

    def ledger(self) -> LedgerReader:
        """Return the ledger as it is now."""
        with self._reading:
            self._reader.read_to_end()
        return self._reader

    def state(self) -> RemoteState:
        return self.ledger().state

    def stands_by(self, number: int) -> None:
        """Wait until a broker follows, and its clients are told of both."""
        at: dict[str, str | int | float | bool] = {"bootstrap.servers": self.brokers[number].bootstrap}
        eventually(lambda: number in self.state().standbys, "the ledger names the standby")
        admin = AdminClient(at)
        eventually(lambda: len(admin.list_topics(timeout=PATIENCE_S).brokers) == 2, "clients know both")

    def serves_reads(self, number: int) -> None:
        """Wait until consumers of a replica's rack are sent there for all that is written now."""
        now_ms = wall_ms() + MARGIN_MS

        def is_there() -> bool:
            found = [one for one in read_registrations(self.store) if one.is_replica]
            return any(one.broker_id == number and one.readable_ms > now_ms for one in found)

        eventually(is_there, "the replica has what is written")
        admin = AdminClient({"bootstrap.servers": self.brokers[self.leader].bootstrap})
        eventually(
            lambda: number in admin.list_topics(TOPIC, PATIENCE_S).topics[TOPIC].partitions[0].replicas,
            "clients know the replica",
        )

    def leads(self, number: int, generation: int) -> None:
        eventually(lambda: self.ledger().generation == generation, "the ledger has another owner")
        leader = self.state().leader
        assert leader is not None
        assert leader.broker_id == number

    def cut(self) -> None:
        """Wait for a cut that begins now."""
        now_ms = wall_ms()
        eventually(lambda: any(one.event.taken_ms > now_ms for one in self.state().cuts), "a cut is made")

    def values(self) -> list[str]:
        return [(one.value() or b"").decode() for one in messages(self.bootstrap, TOPIC, [0], UNCOMMITTED)]

    @property
    def generation(self) -> int:
        return self.ledger().generation

    @property
    def leader(self) -> int:
        """The number of the broker that leads."""
        leader = self.state().leader
        assert leader is not None
        return leader.broker_id
