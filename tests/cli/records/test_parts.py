"""The pieces of the client commands that need no broker."""

import os

import pytest

from mpbroker.cli.cluster.positions import Ends, parse_start
from mpbroker.cli.records.produce import read_lines
from mpbroker.cli.records.template import compile_template
from mpbroker.cli.text.escapes import unescape
from mpbroker.client.config import parse_servers
from mpbroker.client.errors import ConfigError
from mpbroker.client.partitioner import partition_for
from mpbroker.records.encode import murmur2
from mpbroker.records.record import Record


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_is_kafkas(key: bytes, expected: int) -> None:
    """Numbers from Kafka's own UtilsTest."""
    assert murmur2(key) == expected & 0xFFFFFFFF
    assert partition_for(key, 7) == (expected & 0x7FFFFFFF) % 7


def test_lines_that_arrive_in_pieces() -> None:
    reader, writer = os.pipe()
    os.write(writer, b"one\ntwo\nthr")
    lines = read_lines(reader, 4)
    assert next(lines) == [b"one"]
    assert next(lines) == [b"two"]
    os.write(writer, b"ee\n\nfive")
    os.close(writer)
    assert [line for group in lines for line in group] == [b"three", b"", b"five"]
    os.close(reader)


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


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("beginning", 10),
        ("end", 50),
        ("30", 30),
        ("-5", 45),
        ("-500", 10),
        ("+3", 13),
        ("+99", 50),
        ("@7", 20),
    ],
)
def test_offsets(text: str, position: int) -> None:
    assert parse_start(text, 0).within(Ends(10, 50, 20)) == position


@pytest.mark.parametrize(
    ("address", "parsed"),
    [
        ("h:1", ("h", 1)),
        ("h", ("h", 9092)),
        ("[::1]:5", ("::1", 5)),
        ("[::1]", ("::1", 9092)),
        ("unix:/run/k.sock", ("unix:/run/k.sock", 0)),
    ],
)
def test_addresses(address: str, parsed: tuple[str, int]) -> None:
    assert parse_servers(address) == [parsed]


@pytest.mark.parametrize("address", ["", ":1", "h:0", "h:70000", "h:x", "unix:k.sock"])
def test_bad_addresses(address: str) -> None:
    with pytest.raises(ConfigError, match="is not HOST:PORT"):
        parse_servers(address)
