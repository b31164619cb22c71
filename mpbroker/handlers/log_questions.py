"""Asking the log workers about partitions: each about its own, with one answer when all have answered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from mpbroker.handlers.exchange import Exchange
from mpbroker.ipc import calls
from mpbroker.ipc.topology import log_worker_of_slot

Wanted = TypeVar("Wanted", calls.DeleteBefore, calls.PartitionProducers)
Result = TypeVar("Result")


def ask_owners(
    exchange: Exchange,
    wanted: Sequence[tuple[Wanted, Result]],
    question_of: Callable[[list[Wanted]], calls.Message],
    take: Callable[[list[Result], calls.Message], None],
    done: Callable[[], None],
) -> None:
    """`wanted`: at least one, with where its answer goes. `take` gets those places in the order of the
    question, and what came for them, which is no answer if the worker has died; `done` is called last.
    """
    callers = exchange.broker.log_calls
    by_worker: dict[int, list[tuple[Wanted, Result]]] = {}
    for one, result in wanted:
        by_worker.setdefault(log_worker_of_slot(one.slot, len(callers)), []).append((one, result))
    missing = len(by_worker)

    def answered(results: list[Result], answer: calls.Message) -> None:
        nonlocal missing
        take(results, answer)
        missing -= 1
        if not missing:
            done()

    for worker, pairs in by_worker.items():
        callers[worker].call(
            question_of([one for one, _ in pairs]),
            exchange.later(partial(answered, [result for _, result in pairs])),
            exchange.slot.connection,
        )
