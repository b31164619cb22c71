"""Sizes for people: two or three digits that count, and a unit."""

from __future__ import annotations

import pytest

from mpbroker.cli.text.sizes import binary_size, decimal_size


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (64 << 20, "64 MiB"),
        (3 << 39, "1.5 TiB"),
        (9 << 50, "9216 TiB"),
    ],
)
def test_binary_sizes(count: int, text: str) -> None:
    assert binary_size(count) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (870, "870 B"), (999.5, "1.0 kB"), (1_200_000, "1.2 MB"), (99_960_000, "100 MB")],
)
def test_decimal_sizes(count: float, text: str) -> None:
    assert decimal_size(count) == text
