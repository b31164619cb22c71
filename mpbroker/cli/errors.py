"""Failures of commands: one line with the problem and advice, an exit code, no traceback."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Concatenate, ParamSpec, TypeVar

RUNTIME_ERROR = 1
USAGE_ERROR = 2
# A shell reports 128 plus the number of the signal.
INTERRUPTED = 130

_Value = TypeVar("_Value")
_More = ParamSpec("_More")


class CliError(Exception):
    """A command cannot do its work. `exit_code` is 1 if trying again may help and 2 if the call is wrong."""

    def __init__(self, message: str, exit_code: int = RUNTIME_ERROR) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def of_flag(
    flag: str,
    text: str,
    parse: Callable[Concatenate[str, _More], _Value],
    *args: _More.args,
    **kwargs: _More.kwargs,
) -> _Value:
    """Parse the value of a flag. If `parse` raises BadText, raise CliError, which names the flag."""
    from mpbroker.client.errors import BadText, BadTime

    try:
        return parse(text, *args, **kwargs)
    except BadText as error:
        zone = "; without a zone it is UTC" if isinstance(error, BadTime) else ""
        raise CliError(f"{flag} {text}: {error}{zone}", USAGE_ERROR) from error


def exit_code_of(error: Exception) -> int:
    """Return a CliError's exit code; for other errors 2 if the call was wrong (`is_wrong_call`), else 1."""
    if isinstance(error, CliError):
        return error.exit_code
    return USAGE_ERROR if getattr(error, "is_wrong_call", False) else RUNTIME_ERROR


def with_advice(error: Exception, advice: str) -> CliError:
    """Return an error with the same exit code, and with the same text followed by `advice`."""
    return CliError(f"{error}{advice}", exit_code_of(error))


@contextmanager
def file_named(what: str) -> Iterator[None]:
    """Set `what` as the file name of an OSError that has none. Errors of read and write name no file."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = what
        raise


@contextmanager
def explaining_openssl() -> Iterator[None]:
    """Raise CliError, which names packages to install, if an import in the block needs a missing OpenSSL."""
    try:
        yield
    except ImportError as error:
        if "libssl" not in str(error) and "libcrypto" not in str(error):
            raise
        raise CliError(
            f"the broker needs OpenSSL 3, which this host lacks: {error}. Install it: apt-get install "
            "libssl3 (Debian 13: libssl3t64), dnf install openssl-libs"
        ) from error


def file_error(error: OSError, otherwise: object = "") -> CliError:
    """Return an error with the file's name (`otherwise` if the OSError has none), the problem and advice."""
    where = error.filename if error.filename is not None else otherwise
    advice = ". Run this as its owner: the broker's user" if isinstance(error, PermissionError) else ""
    return CliError(f"{where}: {error.strerror or error}{advice}")
