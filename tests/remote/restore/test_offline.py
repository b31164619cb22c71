"""Cuts while a log directory is offline: a restore brings back all that was shipped of it."""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from mpbroker.records.batch import checksum
from mpbroker.remote.cuts.instant import CutSkipped
from mpbroker.remote.cuts.manifest import shipped_name
from mpbroker.remote.ledger.events import Shipped, ShippedRange
from mpbroker.remote.restore.files import finish, write_files
from mpbroker.remote.restore.plan import check_objects, make_plan
from mpbroker.remote.restore.shipped import ShippedFiles, apply_all_shipped
from mpbroker.storage.checkpoints import Offsets, read_offsets, write_epochs, write_offsets, write_topic_id
from mpbroker.storage.names import (
    HIGH_WATERMARKS,
    LOG_STARTS,
    RECOVERY_POINTS,
    REMOTE_CACHE,
    segment_name,
)
from tests.support.cut_world import CutWorld, contents
from tests.support.forms import each

T = b"t" * 16
OFFLINE = 0b10
CHECKPOINTS = LOG_STARTS, HIGH_WATERMARKS, RECOVERY_POINTS


class Shipping:
    """Two log directories of a partition each. The second one fails; `model` has what is acknowledged."""

    def __init__(self, root: Path, chance: random.Random) -> None:
        self.world = CutWorld(root, directories=2)
        self.chance = chance
        self.number = 0
        for number, log_dir in enumerate(self.world.log_dirs):
            directory = log_dir / f"t-{number}"
            directory.mkdir()
            write_topic_id(directory, T)
            write_epochs(directory, [(0, 0)])
            for base, size in ((0, 3000), (10, 7000)):
                (directory / segment_name(base)).write_bytes(chance.randbytes(size))
                (directory / segment_name(base, ".index")).write_bytes(b"index")
            (directory / segment_name(12, ".snapshot")).write_bytes(b"snapshot")
            for name in CHECKPOINTS:
                write_offsets(log_dir / name, Offsets({("t", number): 12, ("other", 1): 99}))
        self.world.cut()
        # The last position that is acknowledged, by directory: offset, base, position.
        self.ends = {"1/t-1": (12, 10, 6000)}
        self.ids = {"1/t-1": T}
        self.starts = {"1/t-1": 12}
        self.model = [root / "model0", root / "model1"]
        for own, log_dir in zip(self.model, self.world.log_dirs, strict=True):
            shutil.copytree(log_dir, own)
        self.files = ShippedFiles(self.world.store, self.model)
        self.world.failed = OFFLINE

    def ship(self) -> None:
        """Ship a round: some bytes of each partition, which may begin a segment."""
        ranges, parts = [], []
        if self.chance.random() < 0.2:
            name = self.chance.choice(["1/new-0", "1/t-1"])
            self.ids[name] = self.chance.randbytes(16)
            self.ends[name], self.starts[name] = (0, 0, 0), 0
        for path, (offset, base, position) in self.ends.items():
            data = self.chance.randbytes(self.chance.randrange(1, 3000))
            pieces = [(base, position, len(data))]
            if self.chance.random() < 0.3:
                more = self.chance.randbytes(50)
                pieces.append((offset + 1, 0, 50))
                data += more
            end = offset + 2, pieces[-1][0], pieces[-1][1] + pieces[-1][2]
            self.ends[path] = end
            self.starts[path] += self.chance.randrange(2)
            ranges += [
                ShippedRange("0/t-0", T, 0, (), (11, 10, 7000)),
                ShippedRange(path, self.ids[path], self.starts[path], tuple(pieces), end),
            ]
            parts.append(data)
        self.number += 1
        data, name = b"".join(parts), self.chance.randbytes(16)
        event = Shipped(self.number, tuple(ranges), data)
        if self.chance.random() < 0.5:
            self.world.store.put(shipped_name(name), [data], len(data))
            event = Shipped(self.number, tuple(ranges), b"", name, len(data), checksum(data))
        self.world.ledger.append([event])
        self.files.apply(event)

    def acknowledged(self) -> dict[str, object]:
        self.files.finish()
        return of_the_second(self.model)

    def restored(self, to: Path) -> dict[str, object]:
        plan = make_plan(self.world.objects)
        check_objects(self.world.objects, plan)
        log_dirs = [to / "0", to / "1"]
        for one in log_dirs:
            one.mkdir(parents=True)
        write_files(self.world.objects, plan, log_dirs, lambda _count: None)
        apply_all_shipped(self.world.objects, plan, log_dirs)
        finish(log_dirs)
        return of_the_second(log_dirs)


def of_the_second(log_dirs: Sequence[Path]) -> dict[str, object]:
    """Return the files of the second log directory; of checkpoints what they say, in any order."""
    files: dict[str, object] = {
        path: data for path, data in contents(log_dirs).items() if path.startswith("1/")
    }
    for name in CHECKPOINTS:
        files[f"1/{name}"] = dict(read_offsets(log_dirs[1] / name))
    return files


@each("seed", short=range(6), long=range(100))
def test_whatever_was_shipped_comes_back_with_any_cuts_in_between(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    shipping = Shipping(tmp_path, chance)
    for _ in range(chance.randrange(1, 12)):
        match chance.randrange(5):
            case 0 | 1 | 2:
                shipping.ship()
            case 3:
                shipping.world.cut()
            case _:
                shipping.world.again()
                shipping.world.cut()
    assert shipping.restored(tmp_path / "early") == shipping.acknowledged()
    shipping.world.cut()
    # The ledger need not keep any of it.
    assert shipping.world.ledger.state.shipped == []
    assert shipping.restored(tmp_path / "late") == shipping.acknowledged()
    assert not any(shipping.world.root.glob("data*/remote-cache/*"))


def test_no_cut_is_made_if_it_lacks_where_rounds_begin(tmp_path: Path) -> None:
    """Check it for a partition that has moved into the directory that is offline now."""
    shipping = Shipping(tmp_path, random.Random(1))
    shipping.world.ledger.append([Shipped(1, (ShippedRange("1/t-0", T, 0, ((0, 9, 1),), (1, 0, 10)),), b"x")])
    with pytest.raises(CutSkipped, match="has 0 bytes in the cut, what was shipped after it begins at 9"):
        shipping.world.cut()


def test_what_a_kill_has_left_goes(tmp_path: Path) -> None:
    shipping = Shipping(tmp_path, random.Random(1))
    left = shipping.world.log_dirs[0] / REMOTE_CACHE / "offline"
    (left / "1").mkdir(parents=True)
    shipping.world.again()
    assert not left.exists()
    shipping.ship()
    shipping.world.cut()
    assert shipping.restored(tmp_path / "restored") == shipping.acknowledged()
