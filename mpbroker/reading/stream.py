"""Decides what a streaming query reads next, by the rules of Spark's Kafka source for micro-batches.

Spark asks for the end of the next batch, writes it into the query's checkpoint, and then plans the batch.
After a crash Spark plans the same batch again. (Spark: KafkaMicroBatchStream, KafkaOffsetReader.)
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from mpbroker.protocol.numbers import LATEST
from mpbroker.reading.admission import Delay, at_most_bytes, at_most_offsets, backlog
from mpbroker.reading.errors import SourceUnavailable
from mpbroker.reading.follow import Bounds, Follower, follow
from mpbroker.reading.options import AtOffset, AtOffsets, Limit, ReadOptions, TopicPartition
from mpbroker.reading.plan import OffsetRange, Restores, TaskRange, report_loss, resolve, split
from mpbroker.reading.stream_offsets import Json, StreamOffsets, parse_offsets

if TYPE_CHECKING:
    from mpbroker.reading.group_progress import GroupProgress

# A trigger without new records ends after this wait. New records end it early; only other sources of the same
# query have to wait for its end.
IDLE_WAIT_S = 0.15
QUIET_WAIT_S = 0.3
LONGEST_IDLE_WAIT_S = 0.5
# Quiet begins this long after the last new records.
QUIET_AFTER_S = 1.0
_WAIT_TO_POLL = 200
# Spark and this side turn the offsets into JSON and back each time.
_WAIT_S_PER_PARTITION = 0.0003
# Kafka's clients take this long for each of the fetchOffset.numRetries tries (default.api.timeout.ms).
TRY_S = 60.0

_AT_REST = (
    "no broker runs on the log directory, and its last checkpoint, or the last cut in the bucket, is older "
    "than the query's offsets. Start the broker, or wait for its next cut"
)
_LOG = logging.getLogger("mpbroker.spark")
_T = TypeVar("_T")


class Clock(Protocol):
    """A monotonic clock in seconds, and a function that sleeps."""

    def monotonic(self) -> float: ...

    def sleep(self, seconds: float, /) -> None: ...


class Stream:
    """One run of a query. Its methods raise OptionError, SourceUnavailable, DataLoss, CorruptLog, OSError."""

    def __init__(
        self,
        options: ReadOptions,
        *,
        open_follower: Callable[[], Follower] | None = None,
        progress: GroupProgress | None = None,
        clock: Clock = time,
    ) -> None:
        self._options = options
        self._open = open_follower or (lambda: follow(options))
        self._progress = progress
        self._clock = clock
        self._follower: Follower | None = None
        self._bounds: Bounds = {}
        self._ends = StreamOffsets()
        self._failing_since: float | None = None
        self._initial: StreamOffsets | None = None
        self._initial_was_kept = False
        self._delay = Delay(options.min_offsets_per_trigger, options.max_trigger_delay_ms)
        self._is_available_now = False
        self._target: StreamOffsets | None = None
        self._last_end: StreamOffsets | None = None
        # What restores between two generations have kept.
        self._restores: dict[tuple[int, int], Restores] = {}
        self._moved_at = self._clock.monotonic()

    def initial(self) -> Json:
        """Return the offsets at which a new query begins.

        Spark calls this twice, and again after a restart if the first batch was not finished.
        """
        if self._initial is None:
            bounds = self._retried(self._poll)
            starts = self._retried(lambda: self._starts(bounds))
            self._initial = replace(self._ends, offsets=starts)
        return self._initial.to_json()

    def prepare_available_now(self) -> None:
        """Limit this run to the records that exist at the first call of `next_end` (Trigger.AvailableNow)."""
        self._is_available_now = True

    def next_end(self, start: Mapping[str, Any], *, everything: bool = False) -> Json:
        """Return the end offsets of the next batch; `start` if there is nothing to read.

        With `everything` ignore the limits on the size of a batch.
        """
        begun = self._parsed(start)
        if self._is_available_now and self._target is None:
            self._target = self._view(begun, is_final=True)
        if self._progress is not None:
            self._progress.reached(begun.offsets, is_last=begun == self._target)
        if self._has_to_keep_initial(begun):
            end = begun
        elif self._target is not None:
            end = self._admitted(begun, self._target, everything=everything)
        else:
            end = self._awaited(begun, everything=everything)
        self._last_end = end
        return end.to_json()

    def now(self, start: Mapping[str, Any]) -> Json:
        """Return the end offsets at once: tasks of the real-time trigger wait for records themselves."""
        begun = self._parsed(start)
        if self._progress is not None:
            self._progress.reached(begun.offsets)
        return self._view(begun).to_json()

    def latest(self) -> Json | None:
        """Return the end offsets at the last poll, from which Spark computes the lag; None before a poll."""
        return self._ends.to_json() if self._bounds else None

    def plan(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[TaskRange]:
        """Return the tasks of the batch [start, end). A repeated call plans the same offsets."""
        first, last = parse_offsets(start), parse_offsets(end)
        is_first_batch = self._initial is not None and first == self._initial
        # The batch's end is in the checkpoint by now, and the next batch begins there.
        self._initial_was_kept |= is_first_batch
        self._last_end = last
        if not is_first_batch:
            for topic, number in sorted(set(first.offsets) - set(last.offsets)):
                self._report(f"{topic}-{number} was deleted after offset {first.offsets[topic, number]}.")

        def planned() -> list[TaskRange]:
            kept = self._kept(last)
            bounds = self._covering(kept)
            self._report_restores(first)
            ranges = self._ranges(self._kept(first), kept, bounds, may_go_back=is_first_batch)
            return split(self._opened().catalog, ranges, self._options)

        return self._retried(planned)

    def committed(self, end: Mapping[str, Any]) -> None:
        """Record that Spark has finished all batches up to this end.

        Spark calls this late, and never for a run's last batch. For the last batch the JVM reader calls this
        itself, when the run stops.
        """
        if self._progress is not None:
            found = self._parsed(end)
            self._progress.reached(found.offsets, is_last=found is self._last_end)

    def close(self) -> None:
        if self._follower is not None:
            self._follower.close()

    def _parsed(self, start: Mapping[str, Any]) -> StreamOffsets:
        """Parse `start`. If it is the JSON of `_last_end`, as usual, return the object `_last_end`."""
        if self._last_end is not None and start == self._last_end.to_json():
            return self._last_end
        return parse_offsets(start)

    def _starts(self, bounds: Bounds) -> Mapping[TopicPartition, int]:
        if not bounds:
            return {}
        catalog, options = self._opened().catalog, self._options
        return resolve(catalog, options.starting, "starting", sorted(bounds), bounds, options)

    def _has_to_keep_initial(self, begun: StreamOffsets) -> bool:
        """Return whether the first batch has to be empty, so that Spark writes its start into the checkpoint.

        Without that, a restart after a crash would get a later start and lose the records in between.
        (Kafka's source keeps a file in the checkpoint directory, whose path a Python source does not get.)
        """
        if self._initial_was_kept or begun != self._initial:
            return False
        self._initial_was_kept = True
        return _moves(self._options.starting)

    def _awaited(self, begun: StreamOffsets, *, everything: bool) -> StreamOffsets:
        """Wait briefly for new records. Return the end of the next batch, or `begun` if none came.

        An idle query then runs fewer triggers in Spark, and new records end the wait at once.
        """
        begun_at = self._clock.monotonic()
        deadline = None
        while True:
            end = self._admitted(begun, self._view(begun), everything=everything)
            now = self._clock.monotonic()
            if deadline is None:
                # A poll of thousands of partitions costs more, so it comes less often.
                for_partitions = _WAIT_S_PER_PARTITION * len(self._bounds)
                idle_s = IDLE_WAIT_S if now - self._moved_at < QUIET_AFTER_S else QUIET_WAIT_S
                wait_s = max(idle_s, _WAIT_TO_POLL * (now - begun_at), for_partitions)
                deadline = now + min(wait_s, LONGEST_IDLE_WAIT_S)
            if end != begun:
                self._moved_at = now
                return end
            if now >= deadline:
                return end
            if self._follower is None:
                self._clock.sleep(deadline - now)
            else:
                self._follower.wait(deadline - now)

    def _admitted(self, begun: StreamOffsets, view: StreamOffsets, *, everything: bool) -> StreamOffsets:
        """Return the ends in `view`, reduced to the limits of a batch; `begun` if the batch is delayed."""
        if everything or not self._options.is_limited:
            return view
        kept = self._kept(begun)
        begins = {one: self._begin_of(one, kept, view, self._bounds) for one in view.offsets}
        now_ms = self._clock.monotonic() * 1000
        # An available-now run must not be held back: it would end before it has read the rest.
        if self._target is None and self._delay.holds(backlog(begins, view.offsets), now_ms):
            return begun
        ends: Mapping[TopicPartition, int] = view.offsets
        if self._options.max_offsets_per_trigger is not None:
            ends = at_most_offsets(self._options.max_offsets_per_trigger, begins, ends)
        if self._options.max_bytes_per_trigger is not None:
            most, wanted = self._options.max_bytes_per_trigger, ends
            ends = self._retried(lambda: at_most_bytes(most, begins, wanted, self._weight))
        return replace(view, offsets=ends)

    def _weight(self, wanted: OffsetRange) -> int:
        if not self._bounds:
            self._poll()
        return self._opened().catalog.weight(wanted)

    def _begin_of(
        self, one: TopicPartition, first: StreamOffsets, last: StreamOffsets, bounds: Bounds
    ) -> int:
        """Return the offset at which the batch begins in a partition.

        This is the offset in `first`; for a new partition or a recreated topic the log start, 0 if unknown.
        """
        topic = one[0]
        known = first.offsets.get(one)
        is_another = first.of_another(topic, last.topic_ids.get(topic))
        if known is not None and not is_another:
            return known
        return bounds[one].log_start if one in bounds else 0

    def _report_new(self, one: TopicPartition, first: StreamOffsets, last: StreamOffsets, begin: int) -> None:
        """Report a new partition that begins above offset 0, or a partition whose topic was recreated."""
        name = f"{one[0]}-{one[1]}"
        if one not in first.offsets:
            if begin > 0:
                self._report(f"Added partition {name} starts from {begin} instead of 0.")
        elif first.of_another(one[0], last.topic_ids.get(one[0])):
            self._report(
                f"Topic {one[0]} was deleted and recreated: {name} was read up to {first.offsets[one]}, "
                f"and is read from {begin} of the new topic."
            )

    def _ranges(
        self, first: StreamOffsets, last: StreamOffsets, bounds: Bounds, *, may_go_back: bool
    ) -> list[OffsetRange]:
        """Return the readable range of a batch in each partition. Report unreadable offsets as data loss."""
        ranges = []
        for one, until in sorted(last.offsets.items()):
            begin = self._begin_of(one, first, last, bounds)
            self._report_new(one, first, last, begin)
            if until < begin and not may_go_back:
                self._report(f"The offset of {one[0]}-{one[1]} was changed from {begin} to {until}.")
            elif until > begin:
                found = self._readable(one, begin, until, last, bounds)
                if found is not None:
                    ranges.append(found)
        return ranges

    def _readable(
        self, one: TopicPartition, begin: int, until: int, last: StreamOffsets, bounds: Bounds
    ) -> OffsetRange | None:
        """Return the readable part of [begin, until), or None. Report unreadable offsets as data loss."""
        name = f"{one[0]}-{one[1]}"
        found = bounds.get(one)
        if found is None:
            self._report(f"Cannot read offsets {begin} to {until - 1} of {name}: it was deleted.")
            return None
        if last.of_another(one[0], found.topic_id):
            text = "the topic was deleted and recreated"
            self._report(f"Cannot read offsets {begin} to {until - 1} of {name}: {text}.")
            return None
        if begin < found.log_start:
            lost, start = min(found.log_start, until) - 1, found.log_start
            self._report(f"Cannot read offsets {begin} to {lost} of {name}: its log starts at {start}.")
        if until > found.end:
            self._report(f"Cannot read up to offset {until} of {name}: its end is {found.end}.")
        begin, until = max(begin, found.log_start), min(until, found.end)
        return OffsetRange(one, begin, until) if until > begin else None

    def _kept(self, offsets: StreamOffsets) -> StreamOffsets:
        """Return the offsets, lowered to where restores of the broker since have cut the logs."""
        return replace(offsets, offsets={**offsets.offsets, **self._cut_off(offsets)})

    def _cut_off(self, offsets: StreamOffsets) -> dict[TopicPartition, int]:
        """Return, for each partition that a restore has cut below its offset, where that was.

        If nobody knows where, return the partition's offset. Raises SourceUnavailable.
        """
        restore_history = None if self._follower is None else self._follower.restore_history
        if restore_history is None or offsets.generation in (None, restore_history.generation):
            return {}
        assert offsets.generation is not None
        key = offsets.generation, restore_history.generation
        if key not in self._restores:
            self._restores = {key: restore_history.restores(offsets.generation)}
        found: dict[TopicPartition, int] = {}
        for kept in self._restores[key]:
            for one, offset in offsets.offsets.items():
                end = kept.get((offsets.topic_ids.get(one[0], b""), one[1]))
                if end is None or end < offset:
                    found[one] = min(found.get(one, offset), offset if end is None else end)
        return found

    def _report_restores(self, first: StreamOffsets) -> None:
        """Report what the query has read and the log has no longer, because the broker was restored."""
        for one, end in sorted(self._cut_off(first).items()):
            name, offset = f"{one[0]}-{one[1]}", first.offsets[one]
            if end == offset:
                self._report(
                    f"The broker was restored after {name} was read up to {offset}, from a cut that is no "
                    "longer kept: some of these records may be others now."
                )
            else:
                self._report(
                    f"The broker was restored: {name} was read up to {offset}, and the log has other records "
                    f"from {end} on now. Undo what came of the former ones; the query can go on at {end}."
                )

    def _report(self, text: str) -> None:
        report_loss(self._options.fail_on_data_loss, text)

    # Below: calls to a follower, which may be without an answer for a while.

    def _opened(self) -> Follower:
        if self._follower is None:
            self._follower = self._open()
        return self._follower

    def _poll(self) -> Bounds:
        """Poll for new bounds; return the same object if nothing changed. Raises SourceUnavailable."""
        follower = self._opened()
        found = follower.poll()
        if found is not self._bounds:
            ends = {one: bounds.end for one, bounds in found.items()}
            generation = None if follower.restore_history is None else follower.restore_history.generation
            self._bounds, self._ends = found, StreamOffsets(ends, _topic_ids(found), generation)
        return found

    def _view(self, begun: StreamOffsets, *, is_final: bool = False) -> StreamOffsets:
        """Return the current end offsets.

        Ends below `begun` and missing partitions are accepted only after retries. While brokers do not
        answer, return `begun`, or wait if `is_final`. Raises SourceUnavailable after retries * TRY_S seconds.
        """
        tries_left = self._options.retries
        while True:
            try:
                bounds = self._poll()
                is_lagging = begun != self._ends and _is_lagging(bounds, self._kept(begun))
                if is_lagging and self._opened().is_at_rest:
                    raise SourceUnavailable(_AT_REST)
            except SourceUnavailable as error:
                self._be_patient(error)
                if not is_final:
                    return begun
            else:
                self._failing_since = None
                if not is_lagging or not tries_left:
                    return self._ends
                tries_left -= 1
            self._clock.sleep(self._options.retry_interval_ms / 1000)

    def _be_patient(self, error: SourceUnavailable) -> None:
        now = self._clock.monotonic()
        if self._failing_since is None:
            self._failing_since = now
            _LOG.warning("%s. The query waits", error)
        if now - self._failing_since >= self._options.retries * TRY_S:
            raise error

    def _covering(self, last: StreamOffsets) -> Bounds:
        """Return the bounds, polled again if they end below `last`. Raises SourceUnavailable."""
        bounds = self._bounds
        if not bounds or _is_lagging(bounds, last):
            bounds = self._poll()
        if _is_lagging(bounds, last) and self._opened().is_at_rest:
            raise SourceUnavailable(_AT_REST)
        return bounds

    def _retried(self, ask: Callable[[], _T]) -> _T:
        """Call `ask`, and retry it up to fetchOffset.numRetries times. Raises SourceUnavailable."""
        for tries_left in range(self._options.retries, 0, -1):
            try:
                return ask()
            except SourceUnavailable as error:
                _LOG.warning("%s. Trying again, %d times at most", error, tries_left)
                self._clock.sleep(self._options.retry_interval_ms / 1000)
                # A partition may have moved: have it located again.
                self._bounds = {}
        return ask()


def open_stream(options: ReadOptions) -> Stream:
    """Begin a run, which commits its progress to the group in commitGroupId, if set. Raises OptionError."""
    if options.commit_group_id is None:
        return Stream(options)
    from mpbroker.reading.group_progress import GroupProgress

    return Stream(options, progress=GroupProgress(options.commit_group_id, options))


def _moves(starting: Limit) -> bool:
    """Return whether the offsets of a starting limit may change while records are written, as LATEST does."""
    if isinstance(starting, AtOffset):
        return starting.offset == LATEST
    return not isinstance(starting, AtOffsets) or LATEST in starting.offsets.values()


def _topic_ids(bounds: Bounds) -> dict[str, bytes]:
    return {topic: found.topic_id for (topic, _), found in bounds.items() if found.topic_id is not None}


def _is_lagging(bounds: Bounds, offsets: StreamOffsets) -> bool:
    """Return whether `bounds` lacks a partition of `offsets`, or has an end below the partition's offset.

    In a recreated topic, an end below the offset is no lag.
    """
    for one, offset in offsets.offsets.items():
        found = bounds.get(one)
        if found is None or (found.end < offset and not offsets.of_another(one[0], found.topic_id)):
            return True
    return False
