"""The CHANGELOG keeps the form that programs read: keepachangelog.com/en/1.1.0."""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path

CHANGELOG = Path(__file__).parents[2] / "CHANGELOG.md"
KINDS = ("Added", "Changed", "Deprecated", "Removed", "Fixed", "Security")
_VERSION = re.compile(r"\[(\d+)\.(\d+)\.(\d+)\] - (\d{4}-\d\d-\d\d)")


def headings(level: int) -> list[str]:
    return re.findall(rf"^{'#' * level} (.*)$", CHANGELOG.read_text(), re.MULTILINE)


def test_what_is_not_released_comes_first_then_versions_from_the_newest_on() -> None:
    assert headings(1) == ["Changelog"]
    first, *released = headings(2)
    assert first == "[Unreleased]"
    found = [_VERSION.fullmatch(one) for one in released]
    assert all(found), f"a version is '## [1.2.3] - 2026-01-31': {released}"
    versions = [(*map(int, one.groups()[:3]), date.fromisoformat(one[4])) for one in found if one]
    assert versions == sorted(versions, reverse=True)


def test_changes_are_of_known_kinds() -> None:
    assert set(headings(3)) <= set(KINDS)
    assert headings(3)
