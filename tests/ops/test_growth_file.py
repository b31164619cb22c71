"""The file of the measured curves."""

from __future__ import annotations

from ops.bench import growth_file


def test_measurements_are_written_as_they_are_read() -> None:
    curves = growth_file.read()
    assert growth_file.parsed(growth_file.as_text(curves)) == curves
    assert growth_file.as_text(curves) == growth_file.GROWTH.read_text()
