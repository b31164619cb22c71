"""A handler whose partition's oldest segments are in an object store alone; the test is its tier."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mpbroker.config.broker import BrokerConfig
from mpbroker.ipc import calls
from mpbroker.ipc.table import PartitionFlag, word_of
from mpbroker.ipc.topology import TIER
from mpbroker.protocol.headers import decode_response_frame
from mpbroker.remote.tier.cache import RemoteCache
from mpbroker.remote.tier.downloads import Downloads
from mpbroker.storage.names import REMOTE_CACHE
from mpbroker.storage.remote_segments import RemoteSegment, write_remote_segments
from tests.support.handler_logs import FETCH, TOPIC, whole
from tests.support.handler_rig import CoordinatorEnd, Rig, partition_payload, request_frame, rig
from tests.support.polling import until
from tests.support.stored_segments import MemoryStore, TieredLog

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
        self.store = MemoryStore()
        self.cache = RemoteCache(
            directory / REMOTE_CACHE,
            lambda: made.context.config.mpbroker_remote_cache_bytes,
            made.handler.broker.monotonic_ms,
        )
        self.cache.open()
        self.partition = log.store(self.store, 0)
        self.end = CoordinatorEnd(made.memory, role=TIER)
        self.downloads = Downloads(
            self.store,
            self.cache,
            lambda _slot, _generation: self.partition,
            made.context.config,
            lambda: None,
        )
        self._version = 0
        self.changes: dict[str, Any] = {}

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
        self.partition = self.log.store(self.store, end)
        times = {
            base: max(batch.header.max_timestamp for batch in self.log.batches(base))
            for base in self.log.bases[:-1]
        }
        write_remote_segments(
            self.log.directory,
            [
                RemoteSegment(one.base, one.end, one.size, times[one.base], bytes(16))
                for one in self.partition.segments
            ],
        )
        self._version += 1
        self.rig.memory.words("remote").store(0, word_of(GENERATION, self._version))

    def serve(self) -> None:
        """Do what the tier's loop does, and turn the handler."""
        for call, message in self.end.take():
            assert isinstance(message, calls.RemoteWindow)
            self.downloads.asked(message, lambda answer, call=call: self.end.answer(call, answer))
        self.downloads.step()
        self.rig.handler.run_once(0)

    def request(self, api_key: int, version: int, body: Any, *, flags: int = 0) -> Any:
        """Send a request, serve until it is answered, and return the response."""
        found: list[Any] = []
        self.rig.processor.send(request_frame(api_key, version, body), flags=flags)

        def answered() -> bool:
            replies = self.rig.processor.replies()
            found.extend(one for one in replies if one.length)
            return bool(found)

        until(answered, "the response comes", self.serve)
        (reply,) = found
        return decode_response_frame(api_key, version, whole(self.rig, reply)[4:])[1]

    def fetch(self, body: Any, **options: Any) -> Any:
        """Return the answer of a fetch of one partition."""
        return self.request(FETCH, 12, body, **options).responses[0].partitions[0]


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
        tier.downloads.close()
