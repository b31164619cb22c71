"""Which brokers wait for their tier before they answer clients: those that have named a standby."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpbroker.config.broker import BrokerConfig
from mpbroker.ipc.process import FatalError
from mpbroker.remote.ledger.owner import OwnerFile
from mpbroker.storage.names import REMOTE_OWNER
from mpbroker.supervisor.tiering import has_lease


def config(directory: Path, *, is_on: bool = True) -> BrokerConfig:
    return BrokerConfig(log_dirs=(str(directory),), remote_log_storage_system_enable=is_on)


def name(directory: Path, *standbys: int) -> None:
    file = OwnerFile(directory)
    file.owner.standbys = list(standbys)
    file.save()


def test_a_broker_has_a_lease_if_it_has_named_a_standby(tmp_path: Path) -> None:
    assert not has_lease(config(tmp_path))
    name(tmp_path)
    assert not has_lease(config(tmp_path))
    name(tmp_path, 2)
    assert has_lease(config(tmp_path))


def test_a_damaged_file_may_have_named_one(tmp_path: Path) -> None:
    (tmp_path / REMOTE_OWNER).write_bytes(b"{")
    assert has_lease(config(tmp_path))
    assert not has_lease(config(tmp_path, is_on=False))


def test_a_broker_that_has_named_one_does_not_start_without_a_tier(tmp_path: Path) -> None:
    name(tmp_path, 2, 3)
    with pytest.raises(FatalError, match=r"names standbys \(brokers 2, 3\)"):
        has_lease(config(tmp_path, is_on=False))
