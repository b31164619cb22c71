"""Formats of `consume -f`."""

import pytest

from mpbroker.cli.records.template import compile_template
from mpbroker.records.record import Record


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (r"%t %p %o %k %v\n", b"t 3 9 k v\n"),
        (r"%T %K %S %h %%\x41\\\q", b"5 1 1 h=x,n= %A\\\\q"),
        (r"\%k%v", b"\\%kv"),
        ("plain", b"plain"),
        ("", b""),
    ],
)
def test_template(template: str, expected: bytes) -> None:
    record = Record(9, 5, 0, b"k", b"v", (("h", b"x"), ("n", None)))
    assert compile_template(template)("t", 3, record) == expected
