"""The page's files: all of them are there, and nothing comes from elsewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mpbroker.console import files
from mpbroker.console.app import POLICY
from mpbroker.console.files import PageFiles

STATIC = Path(files.__file__).parent / files.FOLDER
SCRIPTS = sorted(STATIC.glob("*.js"))
TOGETHER_BYTES_MAX = 147_000


def test_each_file_is_served_with_its_kind() -> None:
    found = PageFiles()
    for path in STATIC.iterdir():
        one = found.get("/" if path.name == files.INDEX else f"/{path.name}")
        assert one is not None, path
        assert one.body == path.read_bytes()
        assert one.kind == files.KINDS[path.suffix]


@pytest.mark.parametrize(
    "path", ["/nothing.js", "/../app.py", "/static/app.js", "/index.html/", "//app.js", "/%2e%2e", ""]
)
def test_nothing_else_is(path: str) -> None:
    assert PageFiles().get(path) is None


def test_what_the_page_names_is_there() -> None:
    named = set(re.findall(r'(?:src|href)="/([\w.]+)"', (STATIC / files.INDEX).read_text())) - {"metrics"}
    for script in SCRIPTS:
        named |= set(re.findall(r'from "\./([\w.]+)"', script.read_text()))
    assert named <= {path.name for path in STATIC.iterdir()}
    unused = {path.name for path in STATIC.iterdir()} - named - {files.INDEX}
    assert unused == set()


@pytest.mark.parametrize("path", sorted(STATIC.iterdir()), ids=lambda path: path.name)
def test_nothing_comes_from_elsewhere_or_is_parsed_as_html(path: Path) -> None:
    text = path.read_text()
    addresses = set(re.findall(r"https?://[^\s\"'<)]+", text))
    assert addresses <= {"http://www.w3.org/2000/svg"}
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|srcdoc", text
    )
    if path.suffix == ".html":
        assert not re.search(r"<style|\son\w+=|\sstyle=|<script(?![^>]*\ssrc=)", text)


def test_the_page_is_small() -> None:
    assert sum(path.stat().st_size for path in STATIC.iterdir()) < TOGETHER_BYTES_MAX


def test_the_policy_allows_own_files_alone() -> None:
    sources = dict(one.split(" ", 1) for one in POLICY.split("; "))
    assert sources["default-src"] == "'none'"
    for kind in ("script-src", "style-src", "img-src", "connect-src"):
        assert sources[kind] == "'self'"
    assert sources["frame-ancestors"] == "'none'"
    assert "unsafe" not in POLICY
