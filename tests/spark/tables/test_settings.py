"""The file that declares tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_integration.jobs.frame import JobError
from spark_integration.tables.settings import expanded, read_settings

WHOLE = """
[source]
"kafka.bootstrap.servers" = "localhost:9092"
[lake]
location = "file:///lake"
[[tables]]
pattern = "shop-.*"
name = "shop.{topic}"
partition_by = "hour"
format = "json"
schema = "id bigint"
[[tables]]
topic = "payments"
"""


def written(path: Path, text: str) -> Path:
    file = path / "tables.toml"
    file.write_text(text)
    return file


def test_topics_become_tables(tmp_path: Path) -> None:
    found = read_settings(written(tmp_path, WHOLE))
    tables, problems = expanded(found, ["payments", "shop-orders", "shop-a.b", "workshop-x"])
    assert problems == []
    assert [(one.topic, one.name) for one in tables] == [
        ("shop-orders", "shop.shop_orders"),
        ("shop-a.b", "shop.shop_a_b"),
        ("payments", "lake.payments"),
    ]
    assert tables[0].values == {"format": "json", "schema": "id bigint"}
    assert (found.directory, found.job.interval_s) == (tmp_path, 60)


def test_a_topic_that_has_the_table_of_another_stops_no_table(tmp_path: Path) -> None:
    """Who may make a topic could stop all tables otherwise."""
    found = read_settings(written(tmp_path, WHOLE))
    tables, problems = expanded(found, ["shop-a.b", "shop-a_b", "shop-c"])
    assert [one.topic for one in tables] == ["shop-a.b", "shop-c", "payments"]
    assert problems == ["topics shop-a.b and shop-a_b have the same table shop.shop_a_b: name them apart"]


def test_a_pattern_chooses_no_internal_topic(tmp_path: Path) -> None:
    """Each commit of the job to its groups would be something to commit."""
    found = read_settings(written(tmp_path, WHOLE.replace("shop-.*", ".*")))
    tables, _ = expanded(found, ["__consumer_offsets", "orders"])
    assert [one.topic for one in tables] == ["orders", "payments"]


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('topic = "payments"', "", "a topic or a pattern"),
        ('topic = "payments"', 'topic = "payments"\nname = "payments"', "is not NAMESPACE.NAME"),
        ("[source]", '[source]\nstartingOffsets = "latest"', "the job sets it"),
        ("[source]", '[source]\nvalueFormat = "json"', "the job sets it"),
        ('format = "json"', 'format = "csv"', "Invalid enum value 'csv'"),
        ('schema = "id bigint"', "", "format json needs either schema"),
        ('"hour"', '"week"', "Invalid enum value 'week'"),
        ("[lake]", "[lake]\nurl = 1", "unknown field `url`"),
        ("[source]", "[sources]", "unknown field `sources`, line 2; did you mean source?"),
        (
            "[lake]",
            "[job]\ninterval = 1\n[lake]",
            r"`interval` - at `\$.job`, line 5; did you mean interval_s\?",
        ),
        ("partition_by", "partitionby", "`partitionby`, line 9; did you mean partition_by"),
        ("[source]", "[source", "Expected"),
        (WHOLE[WHOLE.index("[[tables]]") :], "", r"no \[\[tables\]\]"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, old: str, new: str, problem: str) -> None:
    assert old in WHOLE
    with pytest.raises(JobError, match=problem) as raised:
        read_settings(written(tmp_path, WHOLE.replace(old, new)))
    assert str(tmp_path) in str(raised.value)
