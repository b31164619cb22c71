"""`mpbroker.read` on directories that the test wrote, and the examples of its page."""

from __future__ import annotations

import re
import sys
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
import pytest

import mpbroker
from mpbroker.config.extras import pip_install
from mpbroker.reading.errors import DataLoss, OptionError
from mpbroker.records.record import NewRecord
from tests.support.bucket_world import BucketWorld
from tests.support.programs import ran
from tests.support.spark_logs import PartitionWriter, checkpoint, fill, new_log_dir, row_of

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/ARROW.md"
MAY_FIRST = int(datetime(2024, 5, 1, tzinfo=UTC).timestamp() * 1000)
CUSTOMERS = ("ann", "bob", "cid")


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    """Topic t: partition 0 has 30 records, partition 1 has 20."""
    path = new_log_dir(tmp_path / "log")
    writers = [PartitionWriter(path, "t", number) for number in (0, 1)]
    for writer, batches in zip(writers, (3, 2), strict=True):
        fill(writer, batches)
    checkpoint(path, {("t", writer.partition): writer.next_offset for writer in writers})
    return path


def test_all_records_of_all_partitions_come(log_dir: Path) -> None:
    table = mpbroker.read("t", log_dir=log_dir).read_all()
    names = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
    assert table.schema.names == names
    found = [(row["partition"], row["offset"], row["key"]) for row in table.to_pylist()]
    assert found == [(part, n, b"k%d" % n) for part, count in ((0, 30), (1, 20)) for n in range(count)]


def test_columns_are_those_that_were_asked_for_in_that_order(log_dir: Path) -> None:
    reader = mpbroker.read("t", log_dir=[log_dir], columns=["offset", "headers", "key"])
    assert reader.schema.names == ["offset", "headers", "key"]
    assert reader.read_all()["headers"].null_count == 50
    assert "headers" in mpbroker.read("t", log_dir=log_dir, options={"includeHeaders": True}).schema.names
    with pytest.raises(OptionError, match="'keys' does not exist"):
        mpbroker.read("t", log_dir=log_dir, columns=["keys"])


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"partitions": [1]}, [(1, 0, 19)]),
        ({"starting_offsets": {0: 28, 1: 15}}, [(0, 28, 29), (1, 15, 19)]),
        ({"partitions": [0], "starting_offsets": {0: 5}, "ending_offsets": {0: 9}}, [(0, 5, 8)]),
        ({"ending_offsets": {"t": {0: 2, 1: -1}}}, [(0, 0, 1), (1, 0, 19)]),
        ({"starting_offsets": "earliest", "ending_timestamp": 1_700_000_000_004}, [(0, 0, 3), (1, 0, 3)]),
        (
            # A tenth of a millisecond later than the record of offset 17, told in another time zone.
            {
                "starting_timestamp": datetime.fromtimestamp(1_700_000_000, UTC).astimezone(
                    timezone(timedelta(hours=3))
                )
                + timedelta(microseconds=17_100)
            },
            [(0, 18, 29), (1, 18, 19)],
        ),
    ],
)
def test_a_part_of_a_topic(
    log_dir: Path, arguments: dict[str, object], expected: list[tuple[int, int, int]]
) -> None:
    table = mpbroker.read("t", log_dir=log_dir, columns=["partition", "offset"], **arguments).read_all()  # type: ignore[arg-type]
    grouped = table.group_by("partition").aggregate([("offset", "min"), ("offset", "max")])
    assert sorted(map(tuple, (row.values() for row in grouped.to_pylist()))) == expected


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"starting_timestamp": datetime(2024, 5, 1)}, "has no time zone"),  # noqa: DTZ001
        ({"starting_timestamp": datetime(2030, 5, 1, tzinfo=UTC)}, "No offset matched"),
        ({"starting_offsets": {0: 1}}, "must specify all TopicPartitions"),
        ({"starting_offsets": 5}, "starting_offsets: expected earliest"),
        ({"starting_offsets": "latest"}, "can't be latest"),
        ({"isolation_level": "read_all"}, "read_committed or read_uncommitted"),
        ({"partitions": [7]}, "no partition 7"),
    ],
)
def test_what_cannot_be_is_said_at_the_call(log_dir: Path, arguments: dict[str, object], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        mpbroker.read("t", log_dir=log_dir, **arguments)  # type: ignore[arg-type]


def test_offsets_of_several_topics_need_their_names(log_dir: Path) -> None:
    with pytest.raises(OptionError, match="of several topics name each"):
        mpbroker.read(["t", "u"], log_dir=log_dir, starting_offsets={0: 1})
    with pytest.raises(OptionError, match=r"log\.dir.*must be specified"):
        mpbroker.read("t")


def test_records_that_went_before_they_were_taken_are_an_error_of_ours(log_dir: Path) -> None:
    reader = mpbroker.read("t", log_dir=log_dir, partitions=[0])
    for path in (log_dir / "t-0").glob("*.log"):
        path.unlink()
    with pytest.raises(DataLoss):
        reader.read_all()


def test_batches_are_read_as_they_are_taken(log_dir: Path) -> None:
    """The second partition's files are not touched before the first one's batches were taken."""
    reader = mpbroker.read("t", log_dir=log_dir)
    assert reader.read_next_batch()["partition"].unique().to_pylist() == [0]
    for path in (log_dir / "t-1").glob("*.log"):
        path.unlink()
    with pytest.raises(DataLoss):
        reader.read_all()


BLOCKED = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == sys.argv[2]:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Blocked())
import mpbroker
light = [name for name in ("pyarrow", "msgspec", "mpbroker.reading") if name in sys.modules]
try:
    rows = mpbroker.read("t", log_dir=sys.argv[1]).read_all().num_rows
except ModuleNotFoundError as error:
    rows = str(error)
print(light, rows, [name for name in sys.modules if name.startswith(("pyspark", "spark_integration"))])
"""


@pytest.mark.process
@pytest.mark.parametrize(
    ("module", "expected"),
    [
        ("pyspark", "[] 50 []"),
        ("pyarrow", f"[] mpbroker.read needs PyArrow. Install the extra: {pip_install('arrow')} []"),
    ],
)
def test_neither_pyspark_nor_arrow_is_imported_before_it_is_needed(
    log_dir: Path, module: str, expected: str
) -> None:
    done = ran([sys.executable, "-c", BLOCKED, str(log_dir), module], check=True, cwd=ROOT, timeout=120)
    assert done.stdout.strip() == expected


def test_the_package_has_nothing_else() -> None:
    with pytest.raises(AttributeError, match="no attribute 'raed'"):
        mpbroker.raed  # noqa: B018 - it is the look-up that fails


@pytest.fixture
def orders(tmp_path: Path) -> Path:
    """What the page reads: JSON of two days in May."""
    path = new_log_dir(tmp_path / "orders")
    writer = PartitionWriter(path, "orders")
    hours = range(0, 48, 6)
    writer.append(
        [
            NewRecord(
                key=CUSTOMERS[n % 3].encode(),
                value=msgspec.json.encode({"customer": CUSTOMERS[n % 3], "cents": 100 + n}),
                timestamp=MAY_FIRST + hour * 3_600_000,
            )
            for n, hour in enumerate(hours)
        ]
    )
    checkpoint(path, {("orders", 0): writer.next_offset})
    world = BucketWorld(path, tmp_path)
    world.publish("orders", row_of(writer))
    world.cut()
    world.directory.rename(f"{path}-store")
    return path


def test_the_examples_of_the_page_run_as_they_are(orders: Path, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 7
    names: dict[str, object] = {}
    for block in blocks:
        assert "/var/lib/mpbroker" in block
        exec(compile(block.replace("/var/lib/mpbroker", str(orders)), str(PAGE), "exec"), names)
    assert capsys.readouterr().out.startswith("8 ['key', 'value', 'topic', 'partition', 'offset'")
    expected = {"ann": 309, "bob": 312, "cid": 207}
    assert names["bytes_by_key"] == {b"ann": 90, b"bob": 90, b"cid": 60}
    assert dict(names["sums"]) == expected  # type: ignore[call-overload]
    decoded = names["decoded"].drop("key").group_by("customer").sum()  # type: ignore[attr-defined]
    assert {row["customer"]: row["cents"] for row in decoded.to_dicts()} == expected
    assert names["frame"]["offset"].max() == 7  # type: ignore[index]
    today, some, last = names["today"], names["some"], names["last"]
    assert isinstance(last, pa.Table)
    assert last.to_pylist() == [{"partition": 0, "offset_max": 7}]
    assert isinstance(today, pa.Table)
    assert isinstance(some, pa.Table)
    assert today["offset"].to_pylist() == [0, 1, 2, 3]
    assert some["offset"].to_pylist() == [2, 3, 4]
