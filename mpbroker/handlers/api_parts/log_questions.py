"""Questions to log workers: each is asked about its own partitions, AT_ONCE partitions per question.

The client gets its response when all workers have answered.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Generic, TypeVar

from mpbroker.handlers.context import RequestContext
from mpbroker.ipc import calls
from mpbroker.ipc.calls import Failed
from mpbroker.ipc.topology import log_worker_of_slot

# Partitions per question. Producers wait meanwhile: some ms of a log worker's work.
AT_ONCE = 100

Owned = TypeVar("Owned", calls.DeleteBefore, calls.PartitionProducers)
Wanted = TypeVar("Wanted", calls.DeleteBefore, calls.PartitionProducers, calls.MovePartition)
Result = TypeVar("Result")


def ask_owners(
    context: RequestContext,
    wanted: Sequence[tuple[Owned, Result]],
    question_of: Callable[[list[Owned]], calls.Message],
    take: Callable[[list[Result], calls.Message], None],
) -> Generator[None]:
    """Ask the log workers that own the partitions, and wait for all answers.

    `wanted` has at least one pair: what to ask for, and the result to fill in. `take(results, answer)` is
    called for each answer, with the results in the order of the question. A dead worker's answer is `Failed`.
    """

    def worker_of(one: Owned) -> int:
        return log_worker_of_slot(one.slot, len(context.broker.log_calls))

    yield from ask_workers(context, wanted, worker_of, question_of, take)


def ask_workers(
    context: RequestContext,
    wanted: Sequence[tuple[Wanted, Result]],
    worker_of: Callable[[Wanted], int],
    question_of: Callable[[list[Wanted]], calls.Message],
    take: Callable[[list[Result], calls.Message], None],
) -> Generator[None]:
    """Do as `ask_owners`, also for partitions without a slot: `worker_of` returns the worker to ask."""
    by_worker: dict[int, list[tuple[Wanted, Result]]] = {}
    for one, result in wanted:
        by_worker.setdefault(worker_of(one), []).append((one, result))
    yield from context.wait(_Questions(context, by_worker, question_of, take).ask_all)


class _Questions(Generic[Wanted, Result]):
    """The questions of one request. `left`: the partitions without an answer so far, by log worker."""

    def __init__(
        self,
        context: RequestContext,
        left: dict[int, list[tuple[Wanted, Result]]],
        question_of: Callable[[list[Wanted]], calls.Message],
        take: Callable[[list[Result], calls.Message], None],
    ) -> None:
        self._context = context
        self._left: dict[int, list[tuple[Wanted, Result]]] = left
        self._question_of: Callable[[list[Wanted]], calls.Message] = question_of
        self._take = take

    def ask_all(self, done: Callable[[None], object]) -> None:
        for worker in list(self._left):
            self._ask(worker, done)

    def _ask(self, worker: int, done: Callable[[None], object]) -> None:
        context = self._context
        question = self._question_of([one for one, _ in self._left[worker][:AT_ONCE]])
        then = context.later(partial(self._answered, worker, done))
        context.broker.log_calls[worker].call(question, then, context.slot.connection)

    def _answered(self, worker: int, done: Callable[[None], object], answer: calls.Message) -> None:
        if self._context.has_response:
            return
        pairs = self._left[worker]
        # If the worker has failed, the rest of its partitions gets no answer either.
        now = pairs if isinstance(answer, Failed) else pairs[: _answered_for(answer)]
        self._take([result for _, result in now], answer)
        if len(now) < len(pairs):
            self._left[worker] = pairs[len(now) :]
            self._ask(worker, done)
            return
        del self._left[worker]
        if not self._left:
            done(None)


def _answered_for(answer: calls.Message) -> int:
    """Return how many partitions the answer covers. Only a Producers answer may omit the last partitions."""
    return len(answer.partitions) if isinstance(answer, calls.Producers) else AT_ONCE


def ask_all(context: RequestContext, question: calls.Message) -> Generator[None, None, list[calls.Message]]:
    """Ask every log worker the same question; return the answers in the order in which they came."""
    clients = context.broker.log_calls
    answers: list[calls.Message] = []

    def ask(done: Callable[[None], object]) -> None:
        def answered(answer: calls.Message) -> None:
            answers.append(answer)
            if len(answers) == len(clients):
                done(None)

        for client in clients:
            client.call(question, context.later(answered), context.slot.connection)

    yield from context.wait(ask)
    return answers
