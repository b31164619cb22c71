"""`mpbroker consume --to`, as a user types it: on files a test wrote, and remotely from a real broker."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from confluent_kafka import Producer

import mpbroker
from mpbroker.cli.errors import CliError
from mpbroker.cli.flags import ClusterAddress
from mpbroker.cli.records import to_file
from mpbroker.client.positions import parse_start
from mpbroker.reading.columns import SCHEMA
from ops.bench.brokers import Broker
from tests.support.flipped_bits import flip
from tests.support.own_cli import OwnCli
from tests.support.polling import PATIENCE_S
from tests.support.real_brokers import create_topic, make_broker, served
from tests.support.spark_logs import PartitionWriter, checkpoint, fill, new_log_dir

NOWHERE = "127.0.0.1:1"


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    """Topic t: partition 0 has offsets 0 to 29, partition 1 has 5 to 24."""
    path = new_log_dir(tmp_path / "log")
    writers = [PartitionWriter(path, "t", number, first_offset=5 * number) for number in (0, 1)]
    for writer, batches in zip(writers, (3, 2), strict=True):
        fill(writer, batches)
    checkpoint(
        path,
        {("t", one.partition): one.next_offset for one in writers},
        {("t", one.partition): one.log_start for one in writers},
    )
    return path


def consume(*arguments: str | Path, bootstrap: str = NOWHERE, code: int = 0) -> str:
    """Return the standard output, or the standard error of a call that fails."""
    said = OwnCli(bootstrap)("consume", *map(str, arguments), code=code)
    return said.err if code else said.out


def offsets(table: pa.Table) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for number, offset in zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True):
        found.setdefault(number, []).append(offset)
    return found


def left_over(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir() if path.name.startswith(".")]


def test_a_topic_becomes_a_parquet_file(log_dir: Path, tmp_path: Path) -> None:
    to = tmp_path / "t.parquet"
    said = consume("t", "--to", to, "--log-dirs", log_dir)
    assert said.splitlines() == [
        f"{to}: 50 records of t, of what was committed when this began",
        "End offsets by partition: 0 to 30, 1 to 25",
    ]
    table = pq.read_table(to)
    assert table.schema.equals(SCHEMA)
    assert offsets(table) == {0: [*range(30)], 1: [*range(5, 25)]}
    assert table.equals(mpbroker.read("t", log_dir=log_dir, columns=SCHEMA.names).read_all().combine_chunks())
    assert to.stat().st_mode & 0o777 == 0o666 & ~to_file._umask()
    refused = consume("t", "--to", to, "--log-dirs", log_dir, code=2)
    assert refused == f"mpbroker: {to} is there already; --overwrite replaces it\n"
    consume("t", "--to", to, "--log-dirs", log_dir, "--overwrite", "-p", "1", "-n", "3")
    assert offsets(pq.read_table(to)) == {1: [5, 6, 7]}
    assert left_over(tmp_path) == []


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (("-o", "-2"), {0: [28, 29], 1: [23, 24]}),
        (("-o", "20", "-p", "1"), {1: [20, 21, 22, 23, 24]}),
        (("-o", "end"), {}),
        (("-o", "beginning", "-n", "32"), {0: [*range(30)], 1: [5, 6]}),
    ],
)
def test_the_other_flags_mean_what_they_mean(
    log_dir: Path, tmp_path: Path, flags: tuple[str, ...], expected: dict[int, list[int]]
) -> None:
    to = tmp_path / "t.arrow"
    consume("t", "--to", to, "--log-dirs", log_dir, *flags)
    with pa.ipc.open_file(to) as file:
        table = file.read_all()
    assert table.schema.equals(SCHEMA)
    assert offsets(table) == expected


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--to", "t.csv"), "--to t.csv: a name ends in .parquet or .arrow"),
        (("--to", "t.parquet", "--json"), "-f and --json are for printing"),
        (("--overwrite",), "--overwrite and --log-dirs go with --to"),
        (("--to", "t.parquet", "-o", "soon"), "-o soon: write beginning, end"),
        (("--to", "t.parquet", "-p", "9"), "topic t has no partition 9"),
    ],
)
def test_calls_that_make_no_sense_are_refused(log_dir: Path, flags: tuple[str, ...], said: str) -> None:
    more = ("--log-dirs", log_dir) if "--to" in flags else ()
    assert said in consume("t", *flags, *more, code=2)
    assert not Path("t.parquet").exists()


def settings(log_dir: Path, to: Path, offset: str = "beginning") -> to_file.Settings:
    return to_file.Settings("t", -1, parse_start(offset, 0), 0, to, False, str(log_dir))


def test_an_offset_that_is_not_there_is_told(log_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(CliError, match="t-1 at offset 2: no such offset, it has 5 to 25"):
        to_file.write(ClusterAddress(NOWHERE), settings(log_dir, tmp_path / "t.parquet", "2"))
    with pytest.raises(CliError, match="there is no directory"):
        to_file.write(ClusterAddress(NOWHERE), settings(log_dir, tmp_path / "nowhere/t.parquet"))


def test_nothing_is_left_of_a_file_that_could_not_be_written_whole(
    log_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    to = tmp_path / "t.parquet"
    to_file.write(ClusterAddress(NOWHERE), settings(log_dir, to))
    before = to.read_bytes()
    segment = next((log_dir / "t-1").glob("*.log"))
    flip(segment, 100)
    with pytest.raises(CliError, match="is damaged"):
        to_file.write(ClusterAddress(NOWHERE), settings(log_dir, to)._replace(is_overwritten=True))
    assert to.read_bytes() == before
    assert left_over(tmp_path) == []
    # Somebody else makes the file while this one is being written.
    monkeypatch.setattr(to_file, "_check_target", lambda _settings: None)
    with pytest.raises(CliError, match="is there already"):
        to_file.write(ClusterAddress(NOWHERE), settings(log_dir, to)._replace(partition=0))
    assert to.read_bytes() == before
    assert left_over(tmp_path) == []


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with served(make_broker(tmp_path_factory.mktemp("broker"))) as running:
        yield running


def test_what_a_real_client_wrote_is_read_over_the_network(broker: Broker, tmp_path: Path) -> None:
    """Records of an aborted transaction are left out of the file, and of what `mpbroker.read` gives."""
    create_topic(broker.bootstrap, "orders", 2)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "to-file"})
    producer.init_transactions(PATIENCE_S)
    for finish, name in ((producer.commit_transaction, b"kept"), (producer.abort_transaction, b"gone")):
        producer.begin_transaction()
        for number in range(10):
            producer.produce("orders", name, b"%d" % number, partition=number % 2, headers=[("h", b"1")])
        producer.flush(PATIENCE_S)
        finish(PATIENCE_S)
    to = tmp_path / "orders.parquet"
    said = consume("orders", "--to", to, bootstrap=broker.bootstrap)
    assert said.startswith(f"{to}: 10 records of orders")
    table = pq.read_table(to)
    assert table["value"].to_pylist() == [b"kept"] * 10
    assert table["headers"].to_pylist() == [[{"key": "h", "value": b"1"}]] * 10
    read = mpbroker.read(
        "orders", bootstrap_servers=broker.bootstrap, columns=["key", "partition"]
    ).read_all()
    assert sorted(read["key"].to_pylist()) == [b"%d" % number for number in range(10)]
    everything = mpbroker.read(
        "orders", bootstrap_servers=[broker.bootstrap], isolation_level="read_uncommitted"
    )
    assert everything.read_all().num_rows == 20
