"""Hosts, origins and tokens: whose requests the HTTP port answers, and to whom it shows more."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from mpbroker.http.guard import has_token, refused_host, refused_origin
from mpbroker.http.server import Scope

TOKEN = "s3cret-Token_of-32-characters-xx"


def scope(**headers: str) -> Scope:
    named = [(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in headers.items()]
    return {"type": "http", "path": "/metrics", "method": "GET", "headers": named}


@pytest.mark.parametrize(
    ("host", "names"),
    [
        ("localhost", ()),
        ("localhost:9644", ()),
        ("LocalHost.:1", ()),
        ("127.0.0.1:9644", ()),
        ("10.1.2.3", ()),
        ("[::1]:9644", ()),
        ("broker.example:9644", ("broker.example",)),
        ("BROKER.example.", ("broker.example",)),
    ],
)
def test_addresses_and_names_that_are_ours(host: str, names: Collection[str]) -> None:
    assert refused_host(scope(host=host), names) is None


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "evil.example:9644",
        "",
        ":9644",
        "[::1",
        "127.0.0.1@evil.example",
        "evil.example@127.0.0.1:x",
        "127.1",
        "0x7f.1",
        "a\xe9",
        "localhost\x00",
    ],
)
def test_every_other_host_is_refused(host: str) -> None:
    refusal = refused_host(scope(host=host), ("broker.example",))
    assert refusal is not None
    assert refusal.status == 421
    assert "http.hosts" in refusal.why


def test_no_browser_leaves_out_the_host() -> None:
    assert refused_host(scope(), ()) is None


@pytest.mark.parametrize(
    ("headers", "is_change"),
    [
        ({}, False),
        ({"origin": "http://localhost:9644"}, True),
        ({"origin": "HTTP://LOCALHOST:9644"}, True),
        ({"origin": "https://localhost:9644"}, True),  # behind a proxy that speaks TLS
        ({"origin": "http://localhost:9644", "sec_fetch_site": "same-origin"}, True),
        ({"sec_fetch_site": "none"}, False),
    ],
)
def test_own_pages_may_ask(headers: dict[str, str], is_change: bool) -> None:
    assert refused_origin(scope(host="localhost:9644", **headers), is_change=is_change) is None


@pytest.mark.parametrize(
    ("headers", "is_change"),
    [
        ({}, True),
        ({"origin": "null"}, False),
        ({"origin": ""}, True),
        ({"origin": "http://evil.example"}, False),
        ({"origin": "http://localhost"}, True),
        ({"origin": "http://localhost:9645"}, True),
        ({"origin": "http://localhost:9644.evil.example"}, True),
        ({"sec_fetch_site": "cross-site"}, False),
        ({"sec_fetch_site": "same-site", "origin": "http://localhost:9644"}, True),
    ],
)
def test_pages_of_others_may_not(headers: dict[str, str], is_change: bool) -> None:
    refusal = refused_origin(scope(host="localhost:9644", **headers), is_change=is_change)
    assert refusal is not None
    assert refusal.status == 403


def test_no_origin_is_that_of_a_request_without_host() -> None:
    assert refused_origin(scope(origin="http://"), is_change=True) is not None


@pytest.mark.parametrize("given", [f"Bearer {TOKEN}", f"bearer {TOKEN}", f"BEARER   {TOKEN} "])
def test_the_token_counts(given: str) -> None:
    assert has_token(scope(authorization=given), TOKEN)


@pytest.mark.parametrize(
    "given",
    [
        "",
        TOKEN,
        "Bearer",
        "Bearer ",
        f"Basic {TOKEN}",
        f"Bearer {TOKEN[:-1]}",
        f"Bearer {TOKEN}x",
        "Bearer \xe9",
    ],
)
def test_anything_else_is_no_token(given: str) -> None:
    assert not has_token(scope(authorization=given), TOKEN)
    assert not has_token(scope(), TOKEN)


def test_without_a_token_nothing_is_one() -> None:
    assert not has_token(scope(authorization="Bearer "), "")
