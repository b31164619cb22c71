"""Writes the log of a partition that an export or an import adds."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from mpbroker.config.broker import BrokerConfig
from mpbroker.config.topic_config import resolve
from mpbroker.log.recovery.log_loader import Known, load
from mpbroker.storage.checkpoints import fsync_directory, put_id_and_epochs
from mpbroker.storage.leader_epochs import Epochs
from mpbroker.storage.names import segment_name


def write_log(
    directory: Path, topic: str, number: int, topic_id: bytes, epochs: Epochs, batches: Iterable[bytearray]
) -> None:
    """Write a log into an empty directory, with its indexes, durably. Raises OSError."""
    put_id_and_epochs(directory, topic_id, epochs)
    with (directory / segment_name(0)).open("wb") as file:
        file.writelines(batches)
    config = resolve(BrokerConfig(), {})
    load(directory, topic, number, topic_id, config, Known(clean=False), lambda _: None).close_cleanly()
    fsync_directory(directory)
