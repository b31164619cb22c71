"""A handler whose partition's oldest segments are in an object store alone; the test is its tier."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mpbroker.config.broker import BrokerConfig
from mpbroker.ipc import calls
from mpbroker.ipc.slots import SlotKind
from mpbroker.ipc.table import PartitionFlag, word_of
from mpbroker.ipc.topology import TIER
from mpbroker.protocol.headers import decode_response_frame
from mpbroker.records.iterate import Batch, iterate_batches
from mpbroker.remote.ledger.events import SegmentAdded
from mpbroker.remote.tier.cache import RemoteCache
from mpbroker.remote.tier.downloads import Downloads
from mpbroker.storage.names import REMOTE_CACHE
from mpbroker.storage.remote_segments import RemoteSegment, write_remote_segments
from tests.support.handler_logs import FETCH, TOPIC, whole
from tests.support.handler_rig import CoordinatorEnd, Rig, fence, partition_payload, request_frame, rig
from tests.support.polling import until
from tests.support.stored_segments import ReadStore, TieredLog

LIVE = PartitionFlag.PARTITION_LIVE | PartitionFlag.PARTITION_TIERED
GENERATION = 5


class TieredHandler:
    """A handler with a tier, and the log of partition 0 of topic `logged`.

    `publish` makes the log visible. `upload` copies the sealed segments to the store and says so; the
    log's `delete_local` removes local files.
    """

    def __init__(self, made: Rig, log: TieredLog, directory: Path) -> None:
        self.rig = made
        self.log = log
        self.store = ReadStore()
        self.cache = RemoteCache(
            directory / REMOTE_CACHE,
            lambda: made.context.config.mpbroker_remote_cache_bytes,
            made.handler.broker.monotonic_ms,
        )
        self.cache.open()
        self.partition = log.store(self.store, 0)
        self._begin()
        self._version = 0
        self.changes: dict[str, Any] = {}

    def _begin(self) -> None:
        self.end = CoordinatorEnd(self.rig.memory, role=TIER)
        self.downloads = Downloads(
            self.store,
            self.cache,
            lambda _slot, _generation: self.partition,
            self.rig.context.config,
            lambda: None,
        )

    def restart(self) -> None:
        """Give a tier that died a successor."""
        self.downloads.jobs.close()
        self.end.arena.reset()
        self.rig.memory.reset_rings_of(TIER)
        self._begin()
        fence(self.rig, TIER, alive=True)

    def publish(self, **changes: Any) -> None:
        self.changes |= changes
        base = self.log.bases[-1]
        end = self.log.end, base, self.log.path(base).stat().st_size
        names = ("high_watermark", "last_stable_offset"), ("high_watermark_segment", "last_stable_segment")
        fields: dict[str, Any] = {"flags": LIVE, "log_end_offset": end[0]}
        for name, value in zip(
            (*names, ("high_watermark_position", "last_stable_position")), end, strict=True
        ):
            fields |= dict.fromkeys(name, value)
        fields["aborted_end"] = max((one.last_offset + 1 for one in self.log.aborted()), default=0)
        self.rig.table.write(0, partition_payload(TOPIC, 0, **(fields | self.changes)))
        dirty = self.rig.memory.words("dirty")
        dirty.store(0, dirty.load(0) + 1)

    def upload(self, end: int | None = None) -> None:
        """Say that the store has all sealed segments below an offset, as it then does."""
        segments = {one.base: one for one in (*self.partition.segments, *self.log.store(self.store).segments)}
        stored = [one for _, one in sorted(segments.items()) if end is None or one.end <= end]
        self.partition = self.partition._replace(segments=stored)
        write_remote_segments(
            self.log.directory,
            [RemoteSegment(one.base, one.end, one.size, self._largest_ms(one), bytes(16)) for one in stored],
        )
        self._version += 1
        self.rig.memory.words("remote").store(0, word_of(GENERATION, self._version))

    def _largest_ms(self, segment: SegmentAdded) -> int:
        batches = iterate_batches(self.store.objects[segment.objects.log])
        # Without records it is when the file was last written, which is later than all of them.
        return max((batch.header.max_timestamp for batch in batches), default=1 << 50)

    def serve(self) -> None:
        """Do what the tier's loop does, and turn the handler."""
        for call, message in self.end.take():
            assert isinstance(message, calls.RemoteWindow)
            self.downloads.asked(message, lambda answer, call=call: self.end.answer(call, answer))
        self.downloads.jobs.step()
        self.rig.handler.run_once(0)

    def begin(self, body: Any, *, flags: int = 0) -> Callable[[], Any]:
        """Send a fetch of one partition; the result returns its answer, None before there is one."""
        answered = self._send(FETCH, 12, body, flags)

        def answer() -> Any:
            response = answered()
            return response.responses[0].partitions[0] if response is not None else None

        self.rig.turn()
        return answer

    def _send(self, api_key: int, version: int, body: Any, flags: int) -> Callable[[], Any]:
        found: list[Any] = []
        # The rig frees no requests; nobody else has a block of this arena now.
        self.rig.processor.arena.reset()
        self.rig.processor.send(request_frame(api_key, version, body), flags=flags)

        def answered() -> Any:
            found.extend(one for one in self.rig.processor.replies() if one.kind != SlotKind.PARKED)
            if not found:
                return None
            (reply,) = found
            return decode_response_frame(api_key, version, whole(self.rig, reply)[4:])[1]

        return answered

    def wait(self, answered: Callable[[], Any]) -> Any:
        return until(answered, "the response comes", self.serve)

    def request(self, api_key: int, version: int, body: Any, *, flags: int = 0) -> Any:
        """Send a request, serve until it is answered, and return the response."""
        return self.wait(self._send(api_key, version, body, flags))

    def fetch(self, body: Any, *, flags: int = 0) -> Any:
        """Return the answer of a fetch of one partition."""
        return self.request(FETCH, 12, body, flags=flags).responses[0].partitions[0]

    def batches_in(self, data: bytes) -> Iterator[Batch]:
        """Return the whole batches of a fetch's answer."""
        return iterate_batches(data)


@contextmanager
def tiered_handler(
    directory: Path, make_log: Callable[[Path], TieredLog], **settings: Any
) -> Iterator[TieredHandler]:
    """All sealed segments of the log are in the store, and only there."""
    config = BrokerConfig(
        log_dirs=(str(directory),),
        remote_log_storage_system_enable=True,
        mpbroker_remote_url="file:///nowhere",
        **settings,
    )
    (directory / "logged-0").mkdir()
    (directory / "logged-1").mkdir()
    with rig(config) as made:
        made.publish(TOPIC)
        tier = TieredHandler(made, make_log(directory / "logged-0"), directory)
        tier.publish()
        tier.upload()
        tier.log.delete_local(tier.log.bases[-1])
        yield tier
        tier.downloads.jobs.close()
