"""Response frames in blocks of this handler's arena, lent to a processor until it has sent them.

A response for which there is no room waits.

block of a SEND         | frame |
block of a SEND_PARTS   | bytes of all PART_BYTES | paths | pad to 8 | n times Part |
"""

from __future__ import annotations

import logging
import struct
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from mpbroker.handlers.requests.response_backpressure import ResponseBackpressure
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


class Pause(NamedTuple):
    """How long a connection is not read after a response, and the quota that causes this pause."""

    ms: int
    by: ThrottledBy


NO_PAUSE = Pause(0, ThrottledBy.THROTTLED_BY_REQUEST)
STAMP_MAX_US = (1 << 32) - 1


class ResponseInfo(NamedTuple):
    """Data that a processor gets with a response: a pause, two points in time, and a log entry.

    `taken_ns`, `local_ns`: when this process took the request, and when the API was done (CLOCK_MONOTONIC); 0
    stands for the time at which the response is sent. `log_entry`: JSON for the request log. `is_last`: the
    connection is closed when the response is sent.
    """

    pause: Pause = NO_PAUSE
    taken_ns: int = 0
    local_ns: int = 0
    log_entry: bytes = b""
    is_last: bool = False

    def stamps_us(self, request: Request, done_ns: int) -> tuple[int, int]:
        """Return `queue_us` and `local_us` of the descriptor: the time in the queue, then in this handler."""
        taken_ns = self.taken_ns or done_ns
        queue_us = max(taken_ns - request.received_ns, 0) // 1000
        local_us = max((self.local_ns or done_ns) - taken_ns, 0) // 1000
        return min(queue_us, STAMP_MAX_US), min(local_us, STAMP_MAX_US)


NO_INFO = ResponseInfo()


def none_following(_request: Request) -> Sequence[Request]:
    """Return no requests: the default of `following` in Responses."""
    return ()


class Responses:
    """Sends responses to the processors.

    `index` is the index of this handler's process, which owns `arena`. `outbox(processor)` returns the ring
    to a processor, `whose(request)` the name of its connection. `following` is called with a request that
    closes its connection; it returns the requests that wait for this one, which are answered with CLOSE, too.
    """

    def __init__(
        self,
        index: int,
        arena: Arena,
        outbox: Callable[[int], Outbox],
        waiting: ResponseBackpressure,
        whose: Callable[[Request], str],
        following: Callable[[Request], Sequence[Request]] = none_following,
    ) -> None:
        self._index = index
        self._following = following
        self._arena = arena
        self._waiting = waiting
        self._outbox = outbox
        self._whose = whose
        self._sizes: dict[int, int] = {}

    @property
    def lent_blocks(self) -> int:
        return len(self._sizes)

    def send(
        self, request: Request, segments: Sequence[Buffer | RecordsSlice], info: ResponseInfo = NO_INFO
    ) -> None:
        """Send a response, or let it wait for room.

        Raises shm.arena.ArenaFull, having sent nothing, if there is no room and too many bytes wait already.
        """
        self._waiting.run(
            request,
            sum(len(segment) for segment in segments if not isinstance(segment, RecordsSlice)),
            partial(self._place, request, segments, info),
            partial(self._give_up, request, info),
        )

    def _give_up(self, request: Request, info: ResponseInfo) -> None:
        log.error(
            "closing %s: there was no room for its answer to API key %d for too long. "
            "Clients that do not read fill the memory for answers (queued.max.request.bytes)",
            self._whose(request),
            request.api_key,
        )
        self.close(request, info._replace(pause=NO_PAUSE, log_entry=b""))

    def _place(self, request: Request, segments: Sequence[Buffer | RecordsSlice], info: ResponseInfo) -> None:
        """Place the response in a block, and send its descriptor. Raises ArenaFull."""
        if any(isinstance(segment, RecordsSlice) for segment in segments):
            self._place_parts(request, segments, info)
            return
        size = sum(len(segment) for segment in segments)
        block, view = self._allocate(size, info.log_entry)
        at = 0
        for segment in segments:
            view[at : at + len(segment)] = segment  # type: ignore[assignment]
            at += len(segment)
        self._push(request, SlotKind.SEND, info, block, 0, size)

    def _place_parts(
        self, request: Request, segments: Sequence[Buffer | RecordsSlice], info: ResponseInfo
    ) -> None:
        """Place a response with file slices in a block: bytes, paths, table of parts. Send its descriptor."""
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
                raise TypeError(f"{type(segment).__name__} does not define its bytes")
            elif len(segment):
                parts.append(pack_part(PartKind.PART_BYTES, len(segment), at))
                pieces.append(segment)
                at += len(segment)
        table = b"".join(parts)
        block, view = self._allocate(parts_at + len(table), info.log_entry)
        view[:held] = b"".join((*pieces, *paths))
        view[parts_at:] = table
        self._push(request, SlotKind.SEND_PARTS, info, block, parts_at, len(parts))

    def _allocate(self, size: int, log_entry: bytes) -> tuple[int, memoryview]:
        """Allocate a block; an entry of the request log goes to its end (ReplyFlag.LOGGED)."""
        room = size + len(log_entry) + _LENGTH.size if log_entry else size
        block = self._arena.allocate(room)
        self._sizes[block] = room
        if log_entry:
            end = self._arena.capacity(block)
            ending = log_entry + _LENGTH.pack(len(log_entry))
            self._arena.view(block, end)[end - len(ending) :] = ending
        return block, self._arena.view(block, size)

    def _push(
        self,
        request: Request,
        kind: int,
        info: ResponseInfo,
        block: int | None = None,
        position: int = 0,
        length: int = 0,
    ) -> None:
        done_ns = time.monotonic_ns()
        flags = ReplyFlag.LOGGED if block is not None and info.log_entry else 0
        flags |= ReplyFlag.LAST if info.is_last else 0
        generation = 0 if block is None else self._arena.lend(block, request.processor)
        self._outbox(request.processor).push(
            pack_reply(
                kind,
                self._index,
                request.channel,
                request.connection,
                block or 0,
                generation,
                position,
                length,
                info.pause.ms,
                request.request,
                done_ns,
                *info.stamps_us(request, done_ns),
                flags,
                throttled_by=info.pause.by,
            )
        )

    def nothing(self, request: Request, info: ResponseInfo = NO_INFO) -> None:
        """End a request without bytes for its client."""
        self._end_without_bytes(request, SlotKind.NOOP, info)

    def close(self, request: Request, info: ResponseInfo = NO_INFO) -> None:
        """Close the connection of a request. Requests that wait for it are also answered with CLOSE."""
        self._end_without_bytes(request, SlotKind.CLOSE, info)
        for one in self._following(request):
            self._push(one, SlotKind.CLOSE, NO_INFO)

    def _end_without_bytes(self, request: Request, kind: int, info: ResponseInfo) -> None:
        block = None
        if info.log_entry:
            try:
                block, _ = self._allocate(0, info.log_entry)
            except ArenaFull as error:
                log.warning("request %d is not in the request log: %s", request.request, error)
        self._push(request, kind, info, block)

    def parked(self, request: Request, *, is_brief: bool = False) -> None:
        """Notify the processor that the request waits in this handler and no longer counts as load.

        `is_brief`: do not wake the processor for this notice, since the response follows soon and wakes it.
        """
        slot = pack_reply(
            SlotKind.PARKED, self._index, request.channel, request.connection, request=request.request
        )
        outbox = self._outbox(request.processor)
        if is_brief:
            outbox.push_quietly(slot)
        else:
            outbox.push(slot)

    def returned(self, block: int, generation: int) -> None:
        """Free a block whose response the processor has sent, or dropped with its connection."""
        if self._arena.take_back(block, generation):
            self._arena.free(block, self._sizes.pop(block))

    def reclaim(self, processor: int) -> None:
        """Take back all blocks lent to a processor. Call this after the processor was fenced."""
        for block in self._arena.lent_to(processor):
            if block in self._sizes:
                self._arena.take_back(block, self._arena.generation(block))
                self._arena.free(block, self._sizes.pop(block))

    def close_produce(self, job: Produce) -> None:
        """Close the connection of a produce request. Whether its batches were appended is unknown."""
        self._outbox(job.processor).push(
            pack_reply(SlotKind.CLOSE, self._index, job.channel, job.connection, request=job.request)
        )
