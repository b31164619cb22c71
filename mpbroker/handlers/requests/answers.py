"""Answers: response frames in blocks of this handler's arena, lent to a processor until it has sent them.

An answer for which there is no room waits.

block of a SEND         | frame |
block of a SEND_PARTS   | bytes of all PART_BYTES | paths | pad to 8 | n times Part |
"""

from __future__ import annotations

import logging
import struct
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from mpbroker.handlers.requests.reply_backpressure import ReplyBackpressure
from mpbroker.ipc.rings import Outbox
from mpbroker.ipc.slots import (
    PartKind,
    Produce,
    ReplyFlag,
    Request,
    SlotKind,
    ThrottledBy,
    pack_part,
    pack_reply,
)
from mpbroker.protocol.wire import Buffer, RecordsSlice
from shm.arena import Arena, ArenaFull

log = logging.getLogger("mpbroker.handlers")

_LENGTH = struct.Struct("=I")


class FileSlice(RecordsSlice):
    """Records that the processor sends from a segment file; see `Part` in slots.pxd."""

    __slots__ = ("file_generation", "generation", "path", "position", "segment_base", "slot")

    def __init__(
        self,
        length: int,
        *,
        slot: int,
        generation: int,
        segment_base: int,
        file_generation: int,
        position: int,
        path: bytes,
    ) -> None:
        super().__init__(length)
        self.slot, self.generation, self.path = slot, generation, path
        self.segment_base, self.file_generation, self.position = segment_base, file_generation, position

    def part(self, path_at: int) -> bytes:
        """Pack the slice as a Part. `path_at` is the position of its path in the block."""
        return pack_part(
            PartKind.PART_FILE,
            self.length,
            self.position,
            self.slot,
            self.generation,
            self.segment_base,
            self.file_generation,
            path_at,
            len(self.path),
        )


class Timing(NamedTuple):
    """Times (CLOCK_MONOTONIC) when this process took a request and was done with it; 0: when it answers."""

    taken_ns: int
    local_ns: int

    def stamps_us(self, request: Request, done_ns: int) -> tuple[int, int]:
        """Return `queue_us` and `local_us` of the reply."""
        taken_ns = self.taken_ns or done_ns
        queue_us = max(taken_ns - request.received_ns, 0) // 1000
        local_us = max((self.local_ns or done_ns) - taken_ns, 0) // 1000
        return min(queue_us, STAMP_MAX_US), min(local_us, STAMP_MAX_US)


class Pause(NamedTuple):
    """How long the connection is not read after its answer, and the quota that causes it."""

    ms: int
    by: ThrottledBy


UNTIMED = Timing(0, 0)
NO_PAUSE = Pause(0, ThrottledBy.THROTTLED_BY_REQUEST)
STAMP_MAX_US = (1 << 32) - 1


def nothing_behind(_request: Request) -> Sequence[Request]:
    """Return no requests."""
    return ()


class Answers:
    """The way of answers to the processors.

    `index` is this handler's, the owner of the arena. `outbox(processor)` returns the way to a processor,
    `whose` names the connection of a request. `behind` is called with a request that closes its connection;
    it returns those that wait behind it, which are closed, too.
    """

    def __init__(
        self,
        index: int,
        arena: Arena,
        outbox: Callable[[int], Outbox],
        waiting: ReplyBackpressure,
        whose: Callable[[Request], str],
        behind: Callable[[Request], Sequence[Request]] = nothing_behind,
    ) -> None:
        self._index = index
        self._behind = behind
        self._arena = arena
        self._waiting = waiting
        self._outbox = outbox
        self._whose = whose
        self._sizes: dict[int, int] = {}

    @property
    def lent_blocks(self) -> int:
        return len(self._sizes)

    def send(
        self,
        request: Request,
        segments: Sequence[Buffer | RecordsSlice],
        pause: Pause = NO_PAUSE,
        timing: Timing = UNTIMED,
        told: bytes = b"",
    ) -> None:
        """Send an answer, or let it wait for room. `told` is its text for the request log.

        Raises shm.arena.ArenaFull, having sent nothing, if there is no room and too much waits already.
        """
        self._waiting.run(
            request,
            sum(len(segment) for segment in segments if not isinstance(segment, RecordsSlice)),
            lambda: self._send(request, segments, pause, timing, told),
            lambda: self._give_up(request, timing),
        )

    def _give_up(self, request: Request, timing: Timing) -> None:
        log.error(
            "closing %s: there was no room for its answer to API key %d for too long. "
            "Clients that do not read fill the memory for answers (queued.max.request.bytes)",
            self._whose(request),
            request.api_key,
        )
        self.close(request, timing)

    def _send(
        self,
        request: Request,
        segments: Sequence[Buffer | RecordsSlice],
        pause: Pause,
        timing: Timing,
        told: bytes,
    ) -> None:
        if any(isinstance(segment, RecordsSlice) for segment in segments):
            self._send_parts(request, segments, pause, timing, told)
            return
        size = sum(len(segment) for segment in segments)
        block, view = self._allocate(size, told)
        at = 0
        for segment in segments:
            view[at : at + len(segment)] = segment  # type: ignore[assignment]
            at += len(segment)
        self._push(request, SlotKind.SEND, block, 0, size, pause, timing, told)

    def _send_parts(
        self,
        request: Request,
        segments: Sequence[Buffer | RecordsSlice],
        pause: Pause,
        timing: Timing,
        told: bytes,
    ) -> None:
        """Send a block of the frame's bytes, the paths of the segments and the table of parts."""
        parts: list[bytes] = []
        pieces: list[Buffer] = []
        at = sum(len(segment) for segment in segments if not isinstance(segment, RecordsSlice))
        paths: dict[bytes, int] = {}
        for path in (segment.path for segment in segments if isinstance(segment, FileSlice)):
            if path not in paths:
                paths[path] = at
                at += len(path)
        held = at
        parts_at = (held + 7) // 8 * 8
        at = 0
        for segment in segments:
            if isinstance(segment, FileSlice):
                parts.append(segment.part(paths[segment.path]))
            elif isinstance(segment, RecordsSlice):
                raise TypeError(f"{type(segment).__name__} does not say which bytes it means")
            elif len(segment):
                parts.append(pack_part(PartKind.PART_BYTES, len(segment), at))
                pieces.append(segment)
                at += len(segment)
        table = b"".join(parts)
        size = parts_at + len(table)
        block, view = self._allocate(size, told)
        view[:held] = b"".join((*pieces, *paths))
        view[parts_at:] = table
        self._push(request, SlotKind.SEND_PARTS, block, parts_at, len(parts), pause, timing, told)

    def _allocate(self, size: int, told: bytes) -> tuple[int, memoryview]:
        """Allocate a block; a text for the request log goes to its end (ReplyFlag.LOGGED)."""
        room = size + len(told) + _LENGTH.size if told else size
        block = self._arena.allocate(room)
        self._sizes[block] = room
        if told:
            end = self._arena.capacity(block)
            ending = told + _LENGTH.pack(len(told))
            self._arena.view(block, end)[end - len(ending) :] = ending
        return block, self._arena.view(block, size)

    def _push(
        self,
        request: Request,
        kind: int,
        block: int,
        position: int,
        length: int,
        pause: Pause,
        timing: Timing,
        told: bytes,
    ) -> None:
        done_ns = time.monotonic_ns()
        generation = self._arena.lend(block, request.processor)
        self._outbox(request.processor).push(
            pack_reply(
                kind,
                self._index,
                request.channel,
                request.connection,
                block,
                generation,
                position,
                length,
                pause.ms,
                request.request,
                done_ns,
                *timing.stamps_us(request, done_ns),
                ReplyFlag.LOGGED if told else 0,
                throttled_by=pause.by,
            )
        )

    def nothing(
        self, request: Request, pause: Pause = NO_PAUSE, timing: Timing = UNTIMED, told: bytes = b""
    ) -> None:
        self._end_without_bytes(request, SlotKind.NOOP, pause, timing, told)

    def close(self, request: Request, timing: Timing = UNTIMED, told: bytes = b"") -> None:
        self._end_without_bytes(request, SlotKind.CLOSE, NO_PAUSE, timing, told)
        for one in self._behind(request):
            self._push_empty(one, SlotKind.CLOSE, NO_PAUSE, UNTIMED)

    def _end_without_bytes(
        self, request: Request, kind: int, pause: Pause, timing: Timing, told: bytes
    ) -> None:
        if told:
            try:
                block, _ = self._allocate(0, told)
            except ArenaFull as error:
                log.warning("request %d is not in the request log: %s", request.request, error)
            else:
                self._push(request, kind, block, 0, 0, pause, timing, told)
                return
        self._push_empty(request, kind, pause, timing)

    def parked(self, request: Request, *, is_brief: bool = False) -> None:
        """Tell the processor that the request waits here and no longer counts as load.

        `is_brief`: its answer will wake the processor before long, so this need not.
        """
        slot = pack_reply(
            SlotKind.PARKED, self._index, request.channel, request.connection, request=request.request
        )
        outbox = self._outbox(request.processor)
        if is_brief:
            outbox.push_quietly(slot)
        else:
            outbox.push(slot)

    def _push_empty(self, request: Request, kind: int, pause: Pause, timing: Timing) -> None:
        done_ns = time.monotonic_ns()
        queue_us, local_us = timing.stamps_us(request, done_ns)
        self._outbox(request.processor).push(
            pack_reply(
                kind,
                self._index,
                request.channel,
                request.connection,
                throttle_ms=pause.ms,
                request=request.request,
                done_ns=done_ns,
                queue_us=queue_us,
                local_us=local_us,
                throttled_by=pause.by,
            )
        )

    def returned(self, block: int, generation: int) -> None:
        """Free a block whose answer the processor has sent, or dropped with its connection."""
        if self._arena.take_back(block, generation):
            self._arena.free(block, self._sizes.pop(block))

    def reclaim(self, processor: int) -> None:
        """Take back all blocks lent to a processor. Call it after the fence."""
        for block in self._arena.lent_to(processor):
            if block in self._sizes:
                self._arena.take_back(block, self._arena.generation(block))
                self._arena.free(block, self._sizes.pop(block))

    def close_produce(self, job: Produce) -> None:
        """Close the connection of a produce whose fate nobody knows."""
        self._outbox(job.processor).push(
            pack_reply(SlotKind.CLOSE, self._index, job.channel, job.connection, request=job.request)
        )
