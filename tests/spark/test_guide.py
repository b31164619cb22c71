"""Readers of docs/SPARK.md can do what it says: every command and snippet is run, beside a real broker."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from ops.bench.brokers import HOST, Mpbroker
from tests.spark.guide import Block, Guide, GuideError, blocks, sections
from tests.support.real_brokers import served
from tests.support.spark_here import ROOT

PAGE = ROOT / "docs" / "SPARK.md"


SECTIONS = sections(PAGE.read_text())


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mpbroker]:
    with served(Mpbroker(tmp_path_factory.mktemp("broker"))) as running:
        yield running


@pytest.fixture(scope="module")
def guide(broker: Mpbroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guide]:
    """The page, of which nothing has been run yet."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    variables = {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": path,
        "SPARK_LOCAL_IP": HOST,
    }
    lake = tmp_path_factory.mktemp("lake")
    places = {
        "/var/lib/mpbroker": str(broker.log_dir),
        "127.0.0.1:9092": broker.bootstrap,
        "/lake": str(lake),
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        patch.chdir(lake)
        found = Guide(PAGE, lake, places, variables)
        yield found
        session = found.namespace.get("spark")
        if isinstance(session, SparkSession):
            session.stop()


@pytest.mark.parametrize("section", SECTIONS)
def test_the_guide_does_what_it_says(guide: Guide, section: str) -> None:
    """A section goes on from those before it; alone it runs them first."""
    assert guide.run(section) > 0


def test_most_sections_have_something_to_run() -> None:
    assert len(SECTIONS) > 8


def test_what_a_page_has_to_run() -> None:
    page = "# a\n```python\nprint(1)\n```\n```text\n1\n```\n"
    page += "## b\n<!-- skip: why -->\n```bash\nfalse\n```\nb\n```text\nx\n```\n### c\n```bash\n## d\n```\n"
    assert blocks(page) == [
        Block("", 2, "python", "print(1)\n", None, "1\n"),
        Block("b", 10, "bash", "false\n", "why", None),
        Block("c", 18, "bash", "## d\n", None, None),
    ]
    assert sections(page) == ["", "c"]
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
        Guide(path, tmp_path, {}, {}).run("")
