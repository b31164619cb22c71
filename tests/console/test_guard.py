"""Tokens and loopback: to whom the console shows records, and whom it lets change things."""

from __future__ import annotations

import pytest

from mpbroker.console.guard import has_token
from mpbroker.exporter.http_server import Scope

TOKEN = "s3cret-Token_of-32-characters-xx"


def scope(**headers: str) -> Scope:
    named = [(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in headers.items()]
    return {"type": "http", "path": "/api/about", "method": "GET", "headers": named}


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
