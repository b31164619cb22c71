"""Writes a metadata segment such as the coordinator's rounds make it, for Kafka's DumpLogSegments.

python tests/support/sample_metadata_segment.py DIRECTORY
kafka-dump-log.sh --cluster-metadata-decoder --files DIRECTORY/00000000000000000000.log
"""

from __future__ import annotations

import sys
import uuid
from pathlib import Path

from mpbroker.config.broker import BrokerConfig
from mpbroker.coordinator.metadata.metadata_records import MetadataRecord, build_metadata_batch, encode_record
from mpbroker.coordinator.metadata.state import Decider, MetadataState
from mpbroker.ipc.calls import AllocateProducerIds, CreateTopic, CreateTopics, DeleteTopics, Message

CALLS: list[Message] = [
    CreateTopics([CreateTopic("orders", 4, configs={"retention.ms": "60000", "cleanup.policy": "compact"})]),
    CreateTopics([CreateTopic("a.b"), CreateTopic("__consumer_offsets", 50)]),
    AllocateProducerIds(),
    DeleteTopics(["a.b"]),
    AllocateProducerIds(),
]


def write_sample_segment(directory: Path) -> tuple[Path, list[MetadataRecord]]:
    """One batch per call; -> (segment, its records)."""
    numbers = iter(range(1 << 64, 1 << 65))
    decider = Decider(BrokerConfig(), 1000, lambda: uuid.UUID(int=next(numbers)).bytes)
    state = MetadataState()
    path = directory / "00000000000000000000.log"
    written: list[MetadataRecord] = []
    with path.open("wb") as file:
        for call in CALLS:
            records = decider.decide(state, call).records
            values = [encode_record(record) for record in records]
            file.write(build_metadata_batch(values, 1_700_000_000_000, state.next_offset))
            state.apply_all(records)
            written += records
    return path, written


if __name__ == "__main__":
    print(write_sample_segment(Path(sys.argv[1]))[0])
