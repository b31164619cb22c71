"""Log directories without a broker, whose cuts go to an object store and come back from there."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from mpbroker.ipc.table import Partition, PartitionFlag, pack_partition
from mpbroker.remote.cuts.bundles import Opened
from mpbroker.remote.cuts.cutter import Cut, Cutter, Instants
from mpbroker.remote.cuts.files import Look, Row
from mpbroker.remote.cuts.instant import Broker, Instant, Rows, open_changed
from mpbroker.remote.cuts.manifest import CutFile
from mpbroker.remote.ledger.ledger import Ledger
from mpbroker.remote.ledger.state import RemoteState
from mpbroker.remote.restore.files import finish, write_files
from mpbroker.remote.restore.offline import bring_forward
from mpbroker.remote.restore.plan import Plan, check_objects, make_plan
from mpbroker.remote.store.object_store import ObjectStore
from mpbroker.storage.names import META_PROPERTIES
from shm.clock import wall_ms
from tests.support.fault_store import MemoryStore
from tests.support.ledger_parts import STARTED, ledger_of

PROPERTIES = b"version=1\ncluster.id=cluster\nnode.id=1\n"


class NoRows(Rows):
    """No partition is in a table, but those of `found`: all others are listed each time."""

    def __init__(self) -> None:
        """Begin without any."""
        self.found: dict[str, Row] = {}

    def all(self) -> dict[str, Row]:
        return self.found

    def payload(self, slot: int) -> bytes | None:
        return next((one.payload for one in self.found.values() if one.slot == slot), None)


def instants_of(broker: Broker) -> Instants:
    """Return what takes instants of a broker that a test does not run meanwhile."""

    def instant(state: RemoteState, known: Mapping[str, CutFile], former: Look) -> Instant:
        files: list[Opened] = []
        look = broker.look_at_rest(state, former, ())
        open_changed(look, former, known, files)
        return Instant(wall_ms(), 0.001, look, files)

    return instant


class CutWorld:
    """`directories` log directories below `root`, a ledger, and who makes cuts."""

    def __init__(self, root: Path, directories: int = 1, store: ObjectStore | None = None) -> None:
        self.root = root
        self.log_dirs = [root / f"data{number}" for number in range(directories)]
        for one in self.log_dirs:
            one.mkdir()
            (one / META_PROPERTIES).write_bytes(PROPERTIES)
        self.objects = MemoryStore()
        self.store = store or self.objects
        self.failed = 0
        self._rows = NoRows()
        self.broker = Broker(self.log_dirs, self._rows, lambda: self.failed)
        self.ledger: Ledger = ledger_of(self.store, self.log_dirs[0])
        self.ledger.start(STARTED)
        self.read = 0
        self.restored = 0
        self.now_ms = 0
        self.shipped = 0
        self.again()

    def open(self, path: str, topic_id: bytes, flags: int = 0) -> None:
        """Have an empty partition in the table, which nobody appends to."""
        log_dir, partition = int(path.partition("/")[0]), int(path.rpartition("-")[2])
        live = PartitionFlag.PARTITION_LIVE | flags
        now = Partition(topic_id, partition, 1, live, 0, 0, log_dir, *[0] * 8)
        self._rows.found[path] = Row(1, pack_partition(now), topic_id, partition)

    def again(self) -> None:
        """Let the tier be dead and have a successor."""
        self.cutter = Cutter(
            self.store, self.broker, ("cluster", 1), self._instant, self._paced, bring_forward
        )
        self.cutter.remember(self.ledger.state)

    def _paced(self, count: int) -> None:
        self.read += count

    def _instant(self, state: RemoteState, known: Mapping[str, CutFile], former: Look) -> Instant:
        found = instants_of(self.broker)(state, known, former)
        self.at_the_instant()
        self.now_ms += 1_000
        mark = max(self.shipped, self.ledger.state.last_shipped), self.ledger.seq
        return found._replace(taken_ms=self.now_ms, shipped=mark[0], since=mark[1])

    def at_the_instant(self) -> None:
        """Do what tests replace: what happens right after the pause."""

    def cut(self) -> Cut:
        """Make a cut, and have the ledger name it. `read` is how many bytes it has read."""
        self.read = 0
        cut = self.cutter.make(self.ledger.state)
        self.ledger.append([cut.event(self.ledger.state, self.ledger.seq)])
        self.cutter.published(cut)
        return cut

    def plan(self, before_ms: int | None = None) -> Plan:
        plan = make_plan(self.objects, before_ms)
        check_objects(self.objects, plan)
        return plan

    def restore(self, plan: Plan | None = None) -> dict[str, bytes]:
        """Restore the newest cut, or that of a plan; return all files by their paths in a cut."""
        self.restored += 1
        to = [self.root / f"restored{self.restored}-{number}" for number in range(len(self.log_dirs))]
        for one in to:
            one.mkdir()
        write_files(self.objects, plan or self.plan(), to, lambda _count: None)
        finish(to)
        return contents(to)


def contents(log_dirs: Sequence[Path]) -> dict[str, bytes]:
    """Return all files below these directories."""
    return {
        f"{number}/{path.relative_to(log_dir)}": path.read_bytes()
        for number, log_dir in enumerate(log_dirs)
        for path in log_dir.rglob("*")
        if path.is_file()
    }


def change_a_file(log_dirs: Sequence[Path], chance: random.Random, other: Callable[[Path], object]) -> None:
    """Change some file of a partition as a log may do it; now and then do something other with its path."""
    path = chance.choice(log_dirs) / f"t-{chance.randrange(3)}"
    path = path / f"{chance.randrange(2):020d}{chance.choice(['.log', '.index', '.snapshot'])}"
    path.parent.mkdir(exist_ok=True)
    match chance.randrange(7):
        case 0 if path.exists():
            path.unlink()
        case 1 if path.exists():
            os.truncate(path, chance.randrange(path.stat().st_size + 1))
        case 2:
            path.with_suffix(".new").write_bytes(chance.randbytes(chance.randrange(2000)))
            path.with_suffix(".new").rename(path)
        case 3:
            other(path)
        case _:
            with path.open("ab") as file:
                file.write(chance.randbytes(chance.randrange(1000)))
