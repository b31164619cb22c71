"""Readers of docs/SPARK.md can do what it says: every command and snippet is run, beside a real broker."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from ops.bench.brokers import HOST, Mpbroker
from tests.spark.guide import Block, Guide, GuideError, blocks
from tests.support.real_brokers import end, stop_cleanly
from tests.support.spark_here import ROOT

PAGE = ROOT / "docs" / "SPARK.md"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Mpbroker]:
    found = Mpbroker(tmp_path / "broker")
    found.directory.mkdir()
    try:
        found.start()
        yield found
        stop_cleanly(found)
    finally:
        end(found)


def test_the_guide_does_what_it_says(
    broker: Mpbroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    variables = {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": path,
        "SPARK_LOCAL_IP": HOST,
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    lake = tmp_path / "lake"
    lake.mkdir()
    monkeypatch.chdir(lake)
    places = {
        "/var/lib/mpbroker": str(broker.log_dir),
        "127.0.0.1:9092": broker.bootstrap,
        "/lake": str(lake),
    }
    guide = Guide(tmp_path, places, variables)
    try:
        assert guide.run(PAGE) > 10
    finally:
        session = guide.namespace.get("spark")
        if isinstance(session, SparkSession):
            session.stop()


def test_what_a_page_has_to_run() -> None:
    page = "a\n```python\nprint(1)\n```\n```text\n1\n```\n"
    page += "<!-- skip: why -->\n```bash\nfalse\n```\nb\n```text\nx\n```\n"
    assert blocks(page) == [
        Block(2, "python", "print(1)\n", None, "1\n"),
        Block(9, "bash", "false\n", "why", None),
    ]
    with pytest.raises(GuideError, match="line 1: a block of perl"):
        blocks("```perl\nprint 1\n```\n")


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("```python\nprint(2)\n```\n```text\n3\n```\n", "prints\n2\n\nnot\n3"),
        ("```python\n1 / 0\n```\n", "line 1: division by zero"),
        ("x\n```bash\necho why >&2; false | true\n```\n", "line 2: ended with 1:\nwhy"),
    ],
)
def test_what_does_not_do_what_it_says(tmp_path: Path, page: str, text: str) -> None:
    path = tmp_path / "page.md"
    path.write_text(page)
    with pytest.raises(GuideError, match=text):
        Guide(tmp_path, {}, {}).run(path)
