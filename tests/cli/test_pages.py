"""`mpbroker docs`: lists pages, prints one or a part of it."""

from __future__ import annotations

import pydoc
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from mpbroker.cli import pages
from mpbroker.cli.errors import CliError
from mpbroker.cli.host import shipped
from tests.support.own_cli import OwnCli

ROOT = Path(__file__).parents[2]
DECISIONS = sorted((ROOT / "docs/decisions").glob("0*.md"))


@pytest.fixture
def cli() -> OwnCli:
    return OwnCli("nobody:1")


def test_all_pages_are_listed_with_their_titles(cli: OwnCli) -> None:
    listed = {row["page"]: row["title"] for row in cli("docs", "--json").json}
    markdown = {path.stem.lower() for path in (*(ROOT / "docs").glob("*.md"), *DECISIONS)}
    others = {"readme", "changelog", "contributing", "decisions"}
    assert set(listed) == markdown | others | set(pages.FILES)
    assert listed["operating"] == "Operating mpbroker"
    assert len(cli("docs").out.splitlines()) == len(listed) + 1


def test_a_page_is_printed_as_it_is(cli: OwnCli) -> None:
    text = (ROOT / "docs/OPERATING.md").read_text()
    for name in ("operating", "OPERATING.md", "docs/OPERATING.md"):
        assert cli("docs", name).out == text
    assert cli("docs", "operating", "--json").json["text"] == text


def test_links_to_decisions_lead_to_them(cli: OwnCli) -> None:
    for path in DECISIONS:
        for name in (path.stem, f"decisions/{path.name}", f"docs/decisions/{path.name}"):
            assert cli("docs", "--path", name).out == f"{path}\n"
    index = ROOT / "docs/decisions/README.md"
    for name in ("decisions", "decisions/README.md", "docs/decisions/README.md"):
        assert cli("docs", "--path", name).out == f"{index}\n"


def test_on_a_terminal_it_goes_through_a_pager(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    monkeypatch.setattr(pydoc, "pager", shown.append)
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
    pages.docs("faq")
    assert shown == [(ROOT / "docs/FAQ.md").read_text()]


def test_other_files_are_printed_and_have_their_place(cli: OwnCli) -> None:
    for name, (file, _) in pages.FILES.items():
        assert cli("docs", name).out == (ROOT / file).read_text()
        assert cli("docs", "--path", name).out == f"{ROOT / file}\n"
    assert cli("docs", "--path").out == f"{ROOT}\n"


def test_a_part_of_a_page(cli: OwnCli) -> None:
    part = cli("docs", "security#a-newer-openssl").out
    assert part.startswith("### A newer OpenSSL\n")
    assert len(re.findall("^##", part, re.MULTILINE)) == 1
    assert cli("docs", "security#the-console").out.startswith('<a id="the-console"></a>**The console**')


def test_code_has_no_headings() -> None:
    text = "# a\n\n```\n# not b\n```\n\n## c\n\n# d\n"
    assert pages.section(text, "a", "page") == text.removesuffix("# d\n")
    with pytest.raises(CliError, match="page#not-b: the page has no such heading"):
        pages.section(text, "not-b", "page")


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        ("oprating", "docs oprating: no such page; did you mean operating? mpbroker docs lists them"),
        ("systemd", "docs systemd: no such page; did you mean unit?"),
        ("operating#quota", "the page has no such heading; did you mean operating#quotas?"),
    ],
)
def test_what_is_not_there_is_named(cli: OwnCli, wanted: str, says: str) -> None:
    assert says in cli("docs", wanted, code=2).err


def test_a_wheel_has_its_own_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipped, "PACKAGE", tmp_path / "site" / "mpbroker")
    assert shipped.directory() == tmp_path / "site"
    (tmp_path / "site/mpbroker/share").mkdir(parents=True)
    assert shipped.directory() == tmp_path / "site/mpbroker/share"
