"""Query strings of the page's requests."""

from __future__ import annotations

import pytest

from mpbroker.client.positions import BEGINNING
from mpbroker.console.queries import LIMIT_MAX, BadQuery, Query


def test_what_is_not_said_has_a_default() -> None:
    wanted = Query(b"topic=t").records(400)
    assert (wanted.topic, wanted.partition, wanted.start, wanted.limit) == ("t", -1, None, 50)
    assert wanted.positions is None
    assert wanted.with_markers


def test_everything_said() -> None:
    text = b"topic=a%2Fb&partition=3&from=beginning&limit=7&text=X%C3%A4&isolation=read_committed&markers=0"
    text += b"&positions=0:5,3:9"
    wanted = Query(text).records(400)
    assert wanted.topic == "a/b"
    assert wanted.start == BEGINNING
    assert wanted.text == "xä".encode()
    assert wanted.isolation == 1
    assert wanted.positions == {0: 5, 3: 9}
    assert not wanted.with_markers


def test_a_page_is_bounded() -> None:
    assert Query(b"topic=t&limit=1000000").records(1).limit == LIMIT_MAX
    assert Query(b"topic=t&limit=-4").records(1).limit == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "topic is missing"),
        (b"topic=", "topic is missing"),
        (b"topic=t&partition=x", "partition is a number, not 'x'"),
        (b"topic=t&limit=1e9", "limit is a number"),
        (b"topic=t&limit=" + b"9" * 30, "limit is a number"),
        (b"topic=t&positions=1:2,x", "positions are PARTITION:OFFSET"),
        (b"topic=t&positions=1", "positions are PARTITION:OFFSET"),
        (b"topic=%ff", "cannot be read"),
        (b"topic=\xff", "cannot be read"),
        (b"&".join(b"a%d=1" % n for n in range(50)), "cannot be read"),
    ],
)
def test_nonsense_is_said_to_be_that(text: bytes, said: str) -> None:
    with pytest.raises(BadQuery, match=said):
        Query(text).records(1)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"from=nowhere", "from 'nowhere': write beginning, end"),
        (b"from=@yesterday", "from '@yesterday': not a time; write"),
        (b"isolation=some", "isolation 'some': a level is one of"),
    ],
)
def test_places_and_levels_are_those_of_the_commands(text: bytes, said: str) -> None:
    """Errors of the page name neither flags nor a zone: it takes times in that of the browser."""
    with pytest.raises(BadQuery, match=said) as caught:
        Query(b"topic=t&" + text).records(1)
    assert " -o" not in str(caught.value)
    assert "UTC" not in str(caught.value)


def test_one_record() -> None:
    wanted = Query(b"topic=t&partition=2&offset=17").one_record(1000)
    assert wanted.limit == 1
    assert wanted.start is not None
    assert (wanted.start.kind, wanted.start.number) == ("offset", 17)
