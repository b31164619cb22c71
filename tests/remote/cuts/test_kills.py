"""A kill at any request of a cut: the cuts before can be restored, and the next one is whole."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from mpbroker.remote.cuts.cutter import Cutter
from tests.support.cut_world import CutWorld
from tests.support.killing_store import Killed, KillingStore
from tests.support.ledger_parts import STARTED, ledger_of


@pytest.mark.parametrize("is_applied", [False, True])
def test_a_kill_at_any_request_loses_no_cut(tmp_path: Path, is_applied: bool) -> None:
    at = 0
    while True:
        root = tmp_path / str(at)
        root.mkdir()
        world = CutWorld(root)
        path = world.log_dirs[0] / "t-0" / f"{0:020d}.log"
        path.parent.mkdir()
        path.write_bytes(b"first")
        world.cut()
        first = world.restore()
        path.write_bytes(b"first and second")
        killing = KillingStore(world.objects, at, is_applied=is_applied)
        ledger = ledger_of(killing, world.log_dirs[0])
        with suppress(Killed):
            ledger.start(STARTED)
            cutter = Cutter(killing, world.broker, ("cluster", 1), world._instant, lambda _count: None)
            cutter.remember(ledger.state)
            cut = cutter.make(ledger.state)
            ledger.append([cut.event(ledger.state, ledger.seq)])
            break
        found = world.restore()
        assert found[f"0/t-0/{0:020d}.log"] in (b"first", b"first and second")
        assert found.keys() == first.keys()
        world.ledger = ledger_of(world.objects, world.log_dirs[0])
        world.ledger.start(STARTED)
        world.again()
        world.cut()
        assert world.restore()[f"0/t-0/{0:020d}.log"] == b"first and second"
        at += 1
    assert at > 5
