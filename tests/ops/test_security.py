"""The tables of docs/SECURITY.md that are made from measurements."""

from __future__ import annotations

import pytest

from ops.bench.security import OUR_NAME
from ops.docs import security
from ops.docs.security import PAGE

SIZES = {
    "before_bytes": 40_000_000,
    "peak_bytes": 41_200_000,
    "after_bytes": 0,
    "shared_before_bytes": 1_500_000,
    "shared_peak_bytes": 12_000,
}
ATTACK = {
    "attack": "a",
    "sent_bytes": 1_800,
    "answer": "NONE",
    "process": "handler 0",
    **SIZES,
    "quiet_ms": 3.2,
    "longest_ms": 1_670.4,
    "longest_of": "Produce",
}
PLAIN = {
    "load": "one",
    "form": "plain",
    "requests_per_s": 12_345.6,
    "p99_us": 9.0,
    "broker_cpu_us": 17.84,
    "rate_ratio": 1.0,
    "rates": [1.0, 1.0],
    "p99_ratio": 1.0,
    "cpu_ratio": 1.0,
}
AGAIN = PLAIN | {"form": "plain again", "rate_ratio": 0.95, "rates": [0.94, 0.96]}
ACLS = PLAIN | {"form": "ACLs", "rate_ratio": 0.985, "rates": [0.9, 11.25], "cpu_ratio": 1.234}
MADE = {
    "attacks": """\
Measured on two cores.

| attack | sent | answered | memory | shared memory | longest wait |
|---|---:|---|---|---|---:|
| a | 1.8 KB | NONE | handler 0: 40 MB → 41 MB → 0 B | 1.5 MB → 12.0 KB | 1,670 ms, Produce (3 ms) |
""",
    "costs": """\
Measured on two cores. The two plain brokers differed by 5.0 % at most.

Requests a second:

| mpbroker | plain, requests/s | plain again | ACLs |
|---|---:|---:|---:|
| `one` | 12,346 | 0.950 (0.940 to 0.960) | 0.985 (0.900 to 11.2) |

CPU of the broker for a request:

| mpbroker | plain, µs | plain again | ACLs |
|---|---:|---:|---:|
| `one` | 17.8 | 1.00 | 1.23 |
""",
}


def test_the_tables_are_up_to_date() -> None:
    text = PAGE.read_text()
    assert text == security.page(text, security.measured()), "run: python -m ops.docs.security"


@pytest.mark.parametrize("name", list(MADE))
def test_a_table_is_made_of_what_was_measured(name: str) -> None:
    measured = {
        "attacks": {"circumstances": "two cores", "attacks": [ATTACK]},
        "costs": {"circumstances": "two cores", "brokers": {OUR_NAME: [PLAIN, AGAIN, ACLS]}},
    }
    assert f"<!-- table {name} -->\n{MADE[name]}<!-- end -->" in security.page(PAGE.read_text(), measured)
