"""Errors about flags."""

import errno

import pytest

from mpbroker.cli.ending import exit_code
from mpbroker.cli.errors import CliError, of_flag
from mpbroker.client.errors import BadTime
from mpbroker.client.times import parse_time


def test_a_flag_is_named_with_its_zone() -> None:
    with pytest.raises(CliError, match=r"--from noon: not a time; .*; without a zone it is UTC$") as caught:
        of_flag("--from", "noon", parse_time, 0)
    assert caught.value.exit_code == 2
    assert isinstance(caught.value.__cause__, BadTime)
    with pytest.raises(CliError, match=r"^--from -1w: not a duration; write .* or PT1H30M$"):
        of_flag("--from", "-1w", parse_time, 0)


def test_a_full_disk_is_no_bug(capsys: pytest.CaptureFixture[str]) -> None:
    """A write that fails has no name of a file."""

    def full() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    assert exit_code(full) == 1
    assert (
        capsys.readouterr().err == "mpbroker: No space left on device: make room, and run the command again\n"
    )
