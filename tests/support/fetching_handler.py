"""A handler that serves fetches of a partition whose files a log process has; the test is its processor."""

from __future__ import annotations

from mpbroker.ipc.slots import SlotFlag, SlotKind
from mpbroker.ipc.table import Partition, pack_partition
from mpbroker.ipc.topology import LOG
from mpbroker.protocol.headers import decode_response_frame
from mpbroker.protocol.messages import FetchRequest, FetchResponse
from tests.support.handler_logs import whole
from tests.support.handler_rig import Rig, fence, request_frame, topic_image

_FETCH, _VERSION = 1, 12
_TOPIC = topic_image("t", 1)


class Fetcher:
    """Fetches of partition 0 of topic t, natively where the turn of the handler can answer them."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        rig.publish(_TOPIC)

    def publish(self, now: Partition) -> None:
        """Publish what the log process has, in the handler's own table."""
        changed = now._replace(topic_id=_TOPIC.topic_id, generation=5, config_version=_TOPIC.config_version)
        self._rig.table.write(0, pack_partition(changed))
        dirty = self._rig.memory.words("dirty")
        dirty.store(0, dirty.load(0) + 1)

    def log_process_dies(self) -> None:
        fence(self._rig, LOG, alive=False)
        fence(self._rig, LOG, alive=True)

    def fetch(self, offset: int, isolation: int, max_bytes: int) -> FetchResponse.PartitionData:
        """Fetch, as a processor passes it on: again, if a file of the answer is gone or replaced by then."""
        request = FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=1 << 20, isolation_level=isolation)
        wanted = FetchRequest.FetchPartition(0, fetch_offset=offset, partition_max_bytes=max_bytes)
        request.topics = [FetchRequest.FetchTopic("t", _TOPIC.topic_id, [wanted])]
        # The rig frees no requests; nobody else has a block of this arena now.
        self._rig.processor.arena.reset()
        flags = 0
        while True:
            self._rig.processor.send(request_frame(_FETCH, _VERSION, request), flags=flags)
            self._rig.work_off()
            (reply,) = (one for one in self._rig.processor.replies() if one.kind != SlotKind.PARKED)
            try:
                response = decode_response_frame(_FETCH, _VERSION, whole(self._rig, reply)[4:])[1]
            except FileNotFoundError:
                assert not flags, "a handler that was asked again names a file that is gone"
                flags = SlotFlag.AGAIN
                continue
            assert isinstance(response, FetchResponse)
            return response.responses[0].partitions[0]

    def forget_deleted(self) -> None:
        """Close files that have been deleted, as a handler does now and then."""
        handler = self._rig.handler
        while handler.broker.readers.forget_deleted():
            pass
        handler.broker.fetch_positions.forget_deleted()
