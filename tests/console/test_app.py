"""The console's own bounds, without a broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from mpbroker.client.admin import Admin
from mpbroker.console.app import READS_MAX, Console
from mpbroker.console.records import RecordQuery


class Reads(Console):
    """A console whose reads last until they are told to end."""

    def __init__(self) -> None:
        self._reads = asyncio.Semaphore(READS_MAX)
        self.gate = asyncio.Event()
        self.under_way = 0

    async def _ask(self, _work: Callable[[Admin], Any]) -> Any:
        self.under_way += 1
        await self.gate.wait()
        self.under_way -= 1
        raise ConnectionError("nobody sees this")


async def test_reads_of_clients_that_have_gone_count_until_they_end() -> None:
    """They are in a thread, and nobody can end that."""
    failures: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    console = Reads()

    async def begin_and_leave() -> None:
        reads = [asyncio.create_task(console._read(RecordQuery("topic"))) for _ in range(2 * READS_MAX)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        for read in reads:
            read.cancel()
        await asyncio.wait(reads)

    for _ in range(3):
        await begin_and_leave()
        assert console.under_way == READS_MAX
    console.gate.set()
    while console.under_way:
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not console._reads.locked()
    assert failures == []
