"""Pauses before logins of those who fail often: how they grow, are forgotten, and disturb nobody else."""

from __future__ import annotations

import pytest

from mpbroker.network.processor.login_pauses import DOUBLINGS_MAX, FailureTable, LoginPauses

S = 1_000_000_000
FIRST_NS, LONGEST_NS = S // 10, 5 * S
HERE, ELSEWHERE = "192.0.2.1", "192.0.2.2"


def pauses(longest_ns: int = LONGEST_NS) -> LoginPauses:
    made = LoginPauses()
    made.first_ns, made.longest_ns = FIRST_NS, longest_ns
    return made


def test_the_pause_of_a_user_grows_to_the_longest() -> None:
    made = pauses()
    seen = []
    for _ in range(14):
        made.failed("", "ann", 0)
        seen.append(made.pause_ns("", "ann", 0))
    doubled = [FIRST_NS << excess for excess in (1, 2, 3, 4, 5)]
    assert seen == [0] * 5 + doubled + [LONGEST_NS] * 4


def test_the_pause_of_an_address_comes_later() -> None:
    made = pauses()
    for number in range(20):
        made.failed(HERE, f"user{number}", 0)
    assert made.pause_ns(HERE, "ann", 0) == 0
    made.failed(HERE, "", 0)
    assert made.pause_ns(HERE, "ann", 0) == FIRST_NS << 1


def test_nobody_else_waits() -> None:
    made = pauses()
    for _ in range(100):
        made.failed(HERE, "ann", 0)
    assert made.pause_ns(HERE, "bob", 0) == LONGEST_NS
    assert made.pause_ns(ELSEWHERE, "ann", 0) == LONGEST_NS
    assert made.pause_ns(ELSEWHERE, "bob", 0) == 0
    assert made.pause_ns("", "bob", 0) == 0


def test_failures_are_forgotten_in_bounded_time() -> None:
    made = pauses()
    for _ in range(10_000):
        made.failed(HERE, "ann", 0)
    assert made.pause_ns(ELSEWHERE, "ann", 10 * (DOUBLINGS_MAX - 1) * S) == FIRST_NS << 1
    assert made.pause_ns(ELSEWHERE, "ann", 10 * DOUBLINGS_MAX * S) == 0
    assert made.pause_ns(HERE, "bob", DOUBLINGS_MAX * S) == 0
    # Who was slow for a while begins anew.
    made.failed("", "ann", 1000 * S)
    assert made.pause_ns("", "ann", 1000 * S) == 0


def test_there_are_none_without_a_longer_pause() -> None:
    made = pauses(longest_ns=FIRST_NS)
    for _ in range(100):
        made.failed(HERE, "ann", 0)
    assert made.pause_ns(HERE, "ann", 0) == 0


def test_neighbours_in_a_network_of_ipv6_count_together() -> None:
    made = pauses()
    for number in range(30):
        made.failed(f"2001:db8:0:7:0:0:0:{number:x}", "", 0)
    assert made.pause_ns("2001:db8:0:7:aaaa:bbbb:cccc:dddd", "", 0) == LONGEST_NS
    assert made.pause_ns("2001:db8:0:8:0:0:0:1", "", 0) == 0


@pytest.mark.parametrize(
    ("one", "another", "are_neighbours"),
    [
        ("2001:db8::1", "2001:db8::aaaa:bbbb:1:2", True),
        ("fe80::1%eth0", "fe80::2", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:127.0.0.9", "127.0.0.9", True),
        ("::ffff:127.0.0.9", "::ffff:127.0.0.8", False),
    ],
)
def test_addresses_count_however_they_are_written(one: str, another: str, are_neighbours: bool) -> None:
    made = pauses()
    for _ in range(100):
        made.failed(one, "", 0)
    assert (made.pause_ns(another, "", 0) > 0) == are_neighbours


def test_clients_on_sockets_of_the_host_have_no_address() -> None:
    made = pauses()
    for _ in range(100):
        made.failed("", "", 0)
    assert made.pause_ns("", "", 0) == 0
    assert len(made.addresses) == len(made.users) == 0


def test_a_full_table_forgets_who_failed_longest_ago() -> None:
    table = FailureTable(free=0, forget_ns=S, entries_max=3)
    for name in (b"a", b"b", b"c", b"a", b"d"):
        table.add(name, 0)
    assert len(table) == 3
    assert [table.excess(name, 0) for name in (b"a", b"b", b"c", b"d")] == [2, 0, 1, 1]


def test_names_take_no_more_room_than_their_hashes() -> None:
    made = pauses()
    made.failed("", "x" * 100_000 + "\ud800", 0)
    assert [len(key) for key in made.users._entries] == [16]
