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


def test_blocks_become_rectangles_and_text_begins_where_it_begins() -> None:
    text = (
        '<rect x="0" y="0" width="122.0" height="48.8" />'
        '<g clip-path="url(#terminal-12-clip-terminal)">'
        + '<rect fill="#101010" x="0" y="1.5" width="9" height="24.65" shape-rendering="crispEdges"/>'
        * 2
        + '<rect fill="#202020" x="0" y="1.5" width="9" height="24.65" shape-rendering="crispEdges"/>'
        '<text class="terminal-12-r1" x="10" y="20" textLength="61" clip-path="url(#terminal-12-line-0)">'
        "&#160;&#160;a&#160;&amp;</text>"
        '<text class="terminal-12-r2" x="10" y="20" textLength="61" clip-path="url(#terminal-12-line-0)">'
        "&#160;▄██</text></g>"
    )
    svg = terminal.crisp(text)
    assert '<text class="t-r1" x="34.4" y="20" textLength="36.6">a\xa0&amp;</text>' in svg
    assert '<rect class="t-r2" x="22.2" y="13.7" width="12.3" height="12.4"/>' in svg
    assert '<rect class="t-r2" x="34.4" y="1.5" width="24.5" height="24.6"/>' in svg
    assert "FULL" not in svg
    assert svg.count("#101010") == 1
    assert svg.count("#202020") == 1
