"""The changes that one request, timer or computation makes in a consumer group, and how they are written.

A change is applied to the group when it is made, so that later requests of the same round see it. The request
is answered when the change is durable. If its records are refused, the change is undone. (Kafka:
CoordinatorResult, and the snapshots of the coordinator's timeline.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Self, TypeVar

from mpbroker.coordinator.groups.consumer.group import ConsumerGroup
from mpbroker.coordinator.groups.consumer.records import ConsumerKey, EpochKey, GroupEpoch
from mpbroker.coordinator.groups.records import Entry, Key, Value
from mpbroker.coordinator.runtime.requests import Answers, Then, Waiter, response_error
from mpbroker.coordinator.runtime.write_queue import Undo, WriteQueue
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import Message

# At most about this much is written in one slice and one batch.
PIECE_BYTES: Final = 1 << 16

T = TypeVar("T")


@dataclass(eq=False)
class Changes:
    """Records that change a group. Each is applied when it is added, and can be undone.

    If a `with` block of this object raises an exception, the records are undone.
    """

    group: ConsumerGroup
    entries: list[Entry] = field(default_factory=list, init=False)
    _undo: list[Undo] = field(default_factory=list, init=False)

    def put(self, key: ConsumerKey, value: Any) -> None:
        """Set the value of a key, or delete the key if `value` is None."""
        before = self.group.replay(key, value)
        if before is None and value is None:
            return
        self.entries.append((key, value))
        self.or_else(partial(self.group.replay, key, before))

    def begin_epoch(self, metadata_hash: int) -> None:
        """Begin the group's next epoch, so that the target is computed again."""
        group = self.group
        self.put(EpochKey(group.group_id), GroupEpoch(group.epoch + 1, metadata_hash))

    def write(self, key: Key, value: Value | None) -> None:
        """Add a record that is not part of a consumer group. The caller applies the record."""
        self.entries.append((key, value))

    def or_else(self, undo: Callable[[], Any]) -> None:
        """Call `undo` if the changes are undone. The function that was passed last is called first."""
        self._undo.append(undo)

    def undo(self) -> None:
        while self._undo:
            self._undo.pop()()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, _trace: object) -> None:
        if error is not None:
            self.undo()


@dataclass(eq=False)
class Writer:
    """Writes changes, and calls back when they are durable or have been undone."""

    _queue: WriteQueue[Entry]
    _answers: Answers

    def answer(
        self, changes: Changes, waiter: Waiter, response: Message, refused: Callable[[ErrorCode], Message]
    ) -> Message | None:
        """Write changes, answer the request that made them when they are durable, and return None.

        If there is nothing to write, and the group's earlier changes are durable, only return `response`.
        `refused(error)` returns the response to a request whose changes are refused.
        """
        if not changes.entries and not changes.group.unwritten:
            return response

        def written(error: ErrorCode) -> None:
            self._answers.answer(waiter, refused(response_error(error)) if error else response)

        self.write(changes, written, waiter)
        return None

    def write(self, changes: Changes, then: Then, waiter: Waiter | None = None) -> None:
        """Write the changes. Call `then` with the error or NONE when they are durable or refused.

        If there is no record to write, `then` only waits for the earlier changes of the group.
        `waiter`: the request that `then` answers.
        """
        group = changes.group

        def written(error: Any) -> None:
            group.unwritten -= 1
            then(error)

        group.unwritten += 1
        self._queue.append(group.group_id, changes.entries, written, waiter, undo=changes.undo)

    def wait(self, groups: Iterable[ConsumerGroup], then: Then, waiter: Waiter) -> None:
        """Call `then` when the changes of these groups so far are durable, with the error if one is refused.

        If they are durable already, call it at once. `waiter`: the request that `then` answers.
        """
        unwritten = [group for group in groups if group.unwritten]
        missing, refused = len(unwritten), ErrorCode.NONE

        def written(error: ErrorCode) -> None:
            nonlocal missing, refused
            missing, refused = missing - 1, refused or error
            if not missing:
                then(refused)

        for group in unwritten:
            self.write(Changes(group), written, waiter)
        if not unwritten:
            then(ErrorCode.NONE)


def pieces(items: Mapping[str, T], size_of: Callable[[str, T], int]) -> Iterator[dict[str, T]]:
    """Yield items in pieces of about PIECE_BYTES. Each piece is written as a batch of its own."""
    piece: dict[str, T] = {}
    size = 0
    for name, item in items.items():
        piece[name] = item
        size += size_of(name, item)
        if size >= PIECE_BYTES:
            yield piece
            piece, size = {}, 0
    if piece:
        yield piece
