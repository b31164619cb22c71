"""Questions to the log workers about partitions: each is asked about its own, some at a time.

The request is answered once, when all workers have answered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Generic, TypeVar

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
    _Questions(exchange, wanted, worker_of, question_of, take, done).ask_all()


class _Questions(Generic[Wanted, Result]):
    """The questions of one request.

    Calls are made with bound methods. Two functions that name each other would be a cycle that keeps the
    request until a collection.
    """

    def __init__(
        self,
        exchange: ApiExchange,
        wanted: Sequence[tuple[Wanted, Result]],
        worker_of: Callable[[Wanted], int],
        question_of: Callable[[list[Wanted]], calls.Message],
        take: Callable[[list[Result], calls.Message], None],
        done: Callable[[], None],
    ) -> None:
        self._exchange = exchange
        self._question_of: Callable[[list[Wanted]], calls.Message] = question_of
        self._take = take
        self._done = done
        # What is left to ask, by worker.
        self._left: dict[int, list[tuple[Wanted, Result]]] = {}
        for one, result in wanted:
            self._left.setdefault(worker_of(one), []).append((one, result))

    def ask_all(self) -> None:
        for worker in list(self._left):
            self._ask(worker)

    def _ask(self, worker: int) -> None:
        exchange = self._exchange
        question = self._question_of([one for one, _ in self._left[worker][:AT_ONCE]])
        then = exchange.later(partial(self._answered, worker))
        exchange.broker.log_calls[worker].call(question, then, exchange.slot.connection)

    def _answered(self, worker: int, answer: calls.Message) -> None:
        if self._exchange.has_answer:
            return
        pairs = self._left[worker]
        # If the worker has failed, the rest of its partitions gets no answer either.
        now = pairs if isinstance(answer, Failed) else pairs[: _answered_for(answer)]
        self._take([result for _, result in now], answer)
        if len(now) < len(pairs):
            self._left[worker] = pairs[len(now) :]
            self._ask(worker)
            return
        del self._left[worker]
        if not self._left:
            self._done()


def _answered_for(answer: calls.Message) -> int:
    """Return how many of the partitions that were asked for the answer is about. A long one is cut off."""
    return len(answer.partitions) if isinstance(answer, calls.Producers) else AT_ONCE


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
