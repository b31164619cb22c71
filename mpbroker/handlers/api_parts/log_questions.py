"""Questions to the log workers about partitions: each is asked about its own, some at a time.

The request is answered once, when all workers have answered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from mpbroker.handlers.broker import ApiExchange
from mpbroker.ipc import calls
from mpbroker.ipc.calls import Failed
from mpbroker.ipc.topology import log_worker_of_slot

# Partitions per question. Producers wait meanwhile: some ms of a log worker's work.
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
    """Ask the log workers that own the partitions.

    `wanted` has at least one item, with the place of its result. `take` gets these places in the order of the
    question, and the answer for them, which is a failure if the worker has died. `done` is called last.
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
    """Ask like `ask_owners`, where `worker_of` finds the log worker because there may be no slot."""
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
        # If the worker has failed, the rest of its partitions gets no answer either.
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
    """Ask every log worker. `take` gets each answer, then `done` is called."""
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
