"""The pictures of the console: shown, of the same size, and made of views that there are."""

from __future__ import annotations

import re
import struct

import pytest

from mpbroker.console.files import PageFiles
from ops.docs import console

KIBIBYTES_MAX = 200


@pytest.mark.parametrize("one", console.of_docs(console.PICTURES), ids=lambda one: one.path.name)
def test_each_picture_is_shown_and_small(one: console.Picture) -> None:
    assert one.path.name in (console.DOCS / "CONSOLE.md").read_text()
    png = one.path.read_bytes()
    assert png.startswith(b"\x89PNG\r\n")
    assert struct.unpack_from(">II", png, 16) == one.size
    assert len(png) < KIBIBYTES_MAX << 10


def test_there_is_a_picture_of_each_view() -> None:
    shell = PageFiles().get("/app.js")
    assert shell is not None
    views = re.findall(r'^ *\["(\w+)", "|, \["(\w+)", "', shell.body.decode(), re.MULTILINE)
    named = {one or other for one, other in views}
    assert len(named) == 7
    assert named <= {place.partition("/")[0] for place, _ in console.VIEWS.values()}
