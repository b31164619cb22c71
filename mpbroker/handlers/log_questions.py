"""Asking the log workers about partitions: each about its own, some at a time, with one answer when all have
answered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from mpbroker.handlers.broker import ApiExchange
from mpbroker.ipc import calls
from mpbroker.ipc.calls import Failed
from mpbroker.ipc.topology import log_worker_of_slot

# Producers wait for the answer: some ms of a log worker's work.
AT_ONCE = 100

Owned = TypeVar("Owned", calls.DeleteBefore, calls.PartitionProducers)
Wanted = TypeVar("Wanted", calls.DeleteBefore, calls.PartitionProducers, calls.MovePartition)
Result = TypeVar("Result")


def ask_owners(
    exchange: ApiExchange,
    wanted: Sequence[tuple[Owned, Result]],
    question_of: Callable[[list[Owned]], calls.Message],
    take: Callable[[list[Result], calls.Message], None],
    done: Callable[[], None],
) -> None:
    """`wanted`: at least one, with where its answer goes. `take` gets those places in the order of the
    question, and what came for them, which is no answer if the worker has died; `done` is called last.
    """
    ask_workers(
        exchange,
        wanted,
        lambda one: log_worker_of_slot(one.slot, len(exchange.broker.log_calls)),
        question_of,
        take,
        done,
    )


def ask_workers(
    exchange: ApiExchange,
    wanted: Sequence[tuple[Wanted, Result]],
    worker_of: Callable[[Wanted], int],
    question_of: Callable[[list[Wanted]], calls.Message],
    take: Callable[[list[Result], calls.Message], None],
    done: Callable[[], None],
) -> None:
    """The same, where a slot does not say whose the partition is."""
    clients = exchange.broker.log_calls
    by_worker: dict[int, list[tuple[Wanted, Result]]] = {}
    for one, result in wanted:
        by_worker.setdefault(worker_of(one), []).append((one, result))
    missing = len(by_worker)

    def ask(worker: int, left: list[tuple[Wanted, Result]]) -> None:
        question = question_of([one for one, _ in left[:AT_ONCE]])
        then = exchange.later(partial(answered, worker, left))
        clients[worker].call(question, then, exchange.slot.connection)

    def answered(worker: int, pairs: list[tuple[Wanted, Result]], answer: calls.Message) -> None:
        nonlocal missing
        if exchange.done:
            return
        # Without an answer there is none for the others either.
        now = pairs if isinstance(answer, Failed) else pairs[:AT_ONCE]
        take([result for _, result in now], answer)
        if len(now) < len(pairs):
            ask(worker, pairs[AT_ONCE:])
            return
        missing -= 1
        if not missing:
            done()

    for worker, pairs in by_worker.items():
        ask(worker, pairs)


def ask_all(
    exchange: ApiExchange,
    question: calls.Message,
    take: Callable[[calls.Message], None],
    done: Callable[[], None],
) -> None:
    """Every log worker."""
    clients = exchange.broker.log_calls
    missing = len(clients)

    def answered(answer: calls.Message) -> None:
        nonlocal missing
        take(answer)
        missing -= 1
        if not missing:
            done()

    for client in clients:
        client.call(question, exchange.later(answered), exchange.slot.connection)
