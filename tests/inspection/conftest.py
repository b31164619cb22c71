"""A log directory as a broker leaves it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from mpbroker.config.broker import BrokerConfig
from mpbroker.config.topic_config import resolve
from mpbroker.log.partition.partition_log import PartitionLog
from mpbroker.storage.checkpoints import write_offsets
from mpbroker.storage.directory_layout import check_log_dirs, name_log_dirs
from mpbroker.storage.names import DURABLE_MARK, HIGH_WATERMARKS
from tests.log import conftest as of_the_log
from tests.support.inspected_log import BATCHES, RECORDS
from tests.support.log_writer import T0, TOPIC_ID, Writer

rig = of_the_log.rig


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A log directory with the partition t-0 of 30 batches in some segments."""
    config = BrokerConfig(log_dirs=(str(tmp_path),))
    name_log_dirs(config, check_log_dirs(config))
    topic = msgspec.structs.replace(resolve(config, {}), segment_bytes=4096, index_interval_bytes=400)
    writer = Writer(PartitionLog.create(tmp_path / "t-0", "t", 0, TOPIC_ID, topic))
    for number in range(BATCHES):
        writer.append(RECORDS, timestamp=T0 + number * 10, size=100, producer=(7, 0, number * RECORDS))
    writer.log.close_cleanly()
    write_offsets(tmp_path / HIGH_WATERMARKS, {("t", 0): BATCHES * RECORDS})
    (tmp_path / DURABLE_MARK).touch()
    return tmp_path
