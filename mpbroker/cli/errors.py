"""Failures of commands: one line that says what is wrong and what to do, an exit code, no traceback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

RUNTIME_ERROR = 1
USAGE_ERROR = 2
# A shell reports 128 plus the number of the signal.
INTERRUPTED = 130


class CliError(Exception):
    """A command cannot do its work. `exit_code` is 1 if trying again may help and 2 if the call is wrong."""

    def __init__(self, message: str, exit_code: int = RUNTIME_ERROR) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@contextmanager
def naming(what: str) -> Iterator[None]:
    """Add a file's name to errors of reads and writes, which have none."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = what
        raise


@contextmanager
def needing_openssl() -> Iterator[None]:
    """Say what to install where a wheel finds no OpenSSL: it takes the host's. Raises CliError."""
    try:
        yield
    except ImportError as error:
        if "libssl" not in str(error) and "libcrypto" not in str(error):
            raise
        raise CliError(
            f"the broker needs OpenSSL 3, which this host lacks: {error}. Install it: apt-get install "
            "libssl3 (Debian 13: libssl3t64), dnf install openssl-libs"
        ) from error


def of_file(error: OSError, otherwise: object = "") -> CliError:
    """Make an error that names the file, what is wrong with it, and what to do.

    `otherwise`: the file, if the error names none.
    """
    where = error.filename if error.filename is not None else otherwise
    advice = ". Run this as its owner: the broker's user" if isinstance(error, PermissionError) else ""
    return CliError(f"{where}: {error.strerror or error}{advice}")
