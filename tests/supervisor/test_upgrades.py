"""Data directories of releases, opened by this version; and of later versions, which it refuses.

`tests.support.release_directory` has made them.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from mpbroker.storage.directory_layout import FORMAT, FORMAT_KEY
from ops.bench.brokers import Broker, BrokerError, Mpbroker
from tests.support.client_tools import eventually
from tests.support.file_trees import tree
from tests.support.real_brokers import served, stop_cleanly
from tests.support.release_directory import RELEASES, contents, flags, read, summary

VERSIONS = sorted(path.stem for path in RELEASES.glob("*.json"))
ARCHIVE_BYTES_MAX = 200_000


def broker_of(directory: Path, version: str, label: str) -> Mpbroker:
    """Return a broker, not started, with a copy of a release's directory."""
    broker = Mpbroker(directory, flags=flags())
    with tarfile.open(RELEASES / f"{version}.tar.xz") as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(directory)
    (directory / label).rename(broker.log_dir)
    return broker


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def stopped(tmp_path: Path, version: str) -> Iterator[Mpbroker]:
    broker = broker_of(tmp_path, version, "stopped")
    yield broker
    broker.kill()


@pytest.fixture
def killed(tmp_path: Path, version: str) -> Iterator[Mpbroker]:
    broker = broker_of(tmp_path, version, "killed")
    yield broker
    broker.kill()


def expected(version: str, label: str) -> object:
    return json.loads((RELEASES / f"{version}.json").read_text())[label]


def verify(broker: Broker) -> None:
    """Check the files of a stopped broker."""
    command = [sys.executable, "-m", "mpbroker", "log", "verify", str(broker.log_dir)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_archives_are_small(version: str) -> None:
    assert (RELEASES / f"{version}.tar.xz").stat().st_size < ARCHIVE_BYTES_MAX


def test_all_that_a_release_has_left_is_there(stopped: Mpbroker, version: str) -> None:
    stopped.start()
    assert contents(stopped.bootstrap) == expected(version, "stopped")
    stop_cleanly(stopped)
    verify(stopped)


def test_its_producer_comes_back_and_ends_the_open_transaction(stopped: Mpbroker) -> None:
    """Readers see then what comes after it."""
    stopped.start()
    again = Producer({"bootstrap.servers": stopped.bootstrap, "transactional.id": "open"})
    again.init_transactions(60)
    again.begin_transaction()
    for partition in range(2):
        again.produce("paid", "committed after the upgrade", partition=partition)
    again.commit_transaction(60)

    def read_again(partition: int) -> list[str | None]:
        return [value for _, _, value, _ in read(stopped.bootstrap, "paid", partition)]

    for partition in range(2):
        eventually(
            lambda partition=partition: read_again(partition)[-1:] == ["committed after the upgrade"],
            "the open transaction ends",
        )
        assert all((value or "").startswith("committed ") for value in read_again(partition))
    stop_cleanly(stopped)
    verify(stopped)


def test_what_was_in_the_journal_alone_is_there(killed: Mpbroker, version: str) -> None:
    assert all(path.stat().st_size == 0 for path in (killed.log_dir / "journalled-0").glob("*.log"))
    killed.start()
    assert {"journalled": summary(read(killed.bootstrap, "journalled", 0))} == expected(version, "killed")
    stop_cleanly(killed)
    verify(killed)


@pytest.mark.parametrize(
    ("written", "says"),
    [
        (str(FORMAT + 1), f"it has format {FORMAT + 1}, and mpbroker"),
        ("x", f"{FORMAT_KEY}=x is not a number"),
        ("0", f"{FORMAT_KEY}=0 is not a number"),
    ],
)
def test_a_directory_of_a_later_version_is_refused_and_stays_as_it_is(
    tmp_path: Path, written: str, says: str
) -> None:
    broker = broker_of(tmp_path, VERSIONS[-1], "stopped")
    with (broker.log_dir / "meta.properties").open("a") as file:
        file.write(f"{FORMAT_KEY}={written}\n")
    before = tree(broker.log_dir)
    with pytest.raises(BrokerError) as refused:
        broker.start()
    assert says in str(refused.value)
    for words in (("recover", str(broker.log_dir)), ("repair", "--yes", str(broker.log_dir / "none-0"))):
        command = [sys.executable, "-m", "mpbroker", "log", *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert says in done.stderr
    assert tree(broker.log_dir) == before


def test_the_present_format_may_be_named(tmp_path: Path) -> None:
    broker = broker_of(tmp_path, VERSIONS[-1], "killed")
    with (broker.log_dir / "meta.properties").open("a") as file:
        file.write(f"{FORMAT_KEY}={FORMAT}\n")
    with served(broker):
        pass
