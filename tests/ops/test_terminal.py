"""The pictures of `mpbroker top`: shown, small, and the same with every font."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from ops.docs import terminal

PICTURES = ("top-dark.svg", "top-light.svg")
KIBIBYTES_MAX = 48


@pytest.mark.parametrize("name", PICTURES)
def test_each_picture_is_shown_small_and_needs_nothing_from_elsewhere(name: str) -> None:
    assert name in (terminal.DOCS / "OPERATING.md").read_text()
    svg = (terminal.DOCS / name).read_text()
    assert len(svg) < KIBIBYTES_MAX << 10
    ElementTree.fromstring(svg)
    assert re.findall(r"(?:url\(|href=)[^#)]*//", svg) == []
