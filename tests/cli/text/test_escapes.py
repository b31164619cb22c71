"""Escapes in separators and templates."""

import pytest

from mpbroker.cli.text.escapes import unescape


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (":", b":"),
        ("é", "é".encode()),
        (r"\t", b"\t"),
        (r"a\x00\0\\\n", b"a\0\0\\\n"),
        ("\\", b"\\"),
        (r"\q\x4", rb"\q\x4"),
    ],
)
def test_escapes(text: str, expected: bytes) -> None:
    assert unescape(text) == expected
