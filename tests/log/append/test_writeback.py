"""What the journal has goes to its segment piece by piece, long before the kernel would begin with that."""

from __future__ import annotations

import pytest

from tests.support.log_node import MakeJournaled
from tests.support.log_rig import ensure
from tests.support.log_writer import make_batch
from tests.support.page_cache import unwritten_pages
from tests.support.polling import until

pytestmark = pytest.mark.usefixtures("tidy")
PIECE_BYTES = 1 << 18


@pytest.mark.disk
def test_whole_pieces_are_written_back_and_the_rest_waits(journaled: MakeJournaled) -> None:
    node = journaled()
    node.boot(log_journal_bytes=16 << 20)
    (target,) = node.open(ensure(1))
    data = make_batch(size=30_000)
    count = (2 * PIECE_BYTES + PIECE_BYTES // 2) // len(data)
    assert node.produce(target, data, 1) == [0]
    for _ in range(count):
        assert node.produce(target, data) == [0]
    until(lambda: not unwritten_pages(node.segment(), 0, 2 * PIECE_BYTES), "whole pieces are written back")
    assert unwritten_pages(node.segment(), 2 * PIECE_BYTES, PIECE_BYTES), "whoever wrote it took all"
