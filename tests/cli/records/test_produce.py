"""Standard input as lines."""

import os

from mpbroker.cli.records.produce import read_lines


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
