"""Tests what one look of a live tail takes of a partition's batches, without a broker."""

from __future__ import annotations

from typing import cast

import pytest

from mpbroker.client.admin import Admin
from mpbroker.console import records
from mpbroker.console.records import RecordQuery
from mpbroker.console.tails import RECORDS_MAX, Tail
from mpbroker.records.compression import Codec
from tests.console.test_records import Served, batch


def tail(client: Served, text: bytes = b"") -> Tail:
    """Return a tail that has the topic before it, as if all of it had come since the first look."""
    made = Tail(cast("Admin", client), RecordQuery("t", text=text, most=100))
    made.poll()
    made._positions = {0: 0}
    return made


def test_what_is_too_much_to_show_is_passed_over() -> None:
    one = tail(Served([batch(*["x"] * 500)]))
    found = one.poll()
    assert (len(found["records"]), found["skipped"]) == (RECORDS_MAX, 300)
    found = one.poll()
    assert [record["offset"] for record in found["records"]] == list(range(400, 500))
    assert found["skipped"] == 0


def test_what_is_too_much_to_look_through_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    one = tail(Served([batch(*["x"] * 5000, codec=Codec.ZSTD)]), b"needle")
    monkeypatch.setattr(records, "SCAN_BYTES_MAX", 1)
    found = one.poll()
    assert found["records"] == []
    assert 0 < found["skipped"] < 5000
    assert one._positions == {0: 5000 - RECORDS_MAX}
