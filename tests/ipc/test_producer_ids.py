"""Producer ids from blocks: each is given out once, in the order in which they were asked for."""

from __future__ import annotations

from collections.abc import Callable

from mpbroker.ipc.calls import AllocateProducerIds, Failed, Message
from mpbroker.ipc.calls import ProducerIds as Block
from mpbroker.ipc.producer_ids import ProducerIds
from mpbroker.protocol.errors import ErrorCode


class BlocksRig:
    """`asked` has those who wait for a block, `taken` the ids that were given out."""

    def __init__(self) -> None:
        self.asked: list[Callable[[Message], None]] = []
        self.taken: list[int | None] = []
        self.ids = ProducerIds(self._ask)

    def _ask(self, call: Message, done: Callable[[Message], None]) -> None:
        assert call == AllocateProducerIds()
        self.asked.append(done)


def test_ids_come_from_one_block_after_the_other() -> None:
    rig = BlocksRig()
    assert rig.ids.take_now() is None
    for _ in range(3):
        rig.ids.take(rig.taken.append)
    (done,) = rig.asked
    done(Block(10, 2))
    assert rig.taken == [10, 11]
    assert rig.ids.take_now() is None, "one still waits for the next block"
    rig.asked[1](Block(50, 2))
    assert rig.taken == [10, 11, 50]
    assert (rig.ids.take_now(), rig.ids.take_now()) == (51, None)
    assert len(rig.asked) == 2


def test_without_a_block_all_who_wait_are_told() -> None:
    rig = BlocksRig()
    rig.ids.take(rig.taken.append)
    rig.ids.take(rig.taken.append)
    rig.asked[0](Failed(ErrorCode.UNKNOWN_SERVER_ERROR, "a fault"))
    assert rig.taken == [None, None]
    rig.ids.take(rig.taken.append)
    rig.asked[1](Block(7, 1))
    assert rig.taken == [None, None, 7]
