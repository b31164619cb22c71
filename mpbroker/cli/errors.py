"""Failures of commands: one line that says what is wrong and what to do, an exit code, no traceback."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Concatenate, ParamSpec, TypeVar

RUNTIME_ERROR = 1
USAGE_ERROR = 2
# A shell reports 128 plus the number of the signal.
INTERRUPTED = 130
# Error codes of a broker that say that the call is wrong, whenever it is made. What is not there, or is there
# already, may be otherwise a moment later.
WRONG_INPUT = frozenset(
    {
        *("INVALID_TOPIC_EXCEPTION", "INVALID_PARTITIONS", "INVALID_REPLICATION_FACTOR", "INVALID_CONFIG"),
        *("INVALID_REPLICA_ASSIGNMENT", "INVALID_REQUEST", "INVALID_GROUP_ID", "INVALID_TIMESTAMP"),
        *("INVALID_PRINCIPAL_TYPE", "INVALID_REGULAR_EXPRESSION", "INVALID_REQUIRED_ACKS"),
        *("INVALID_SESSION_TIMEOUT", "INVALID_TRANSACTION_TIMEOUT", "OFFSET_METADATA_TOO_LARGE"),
        *("OFFSET_OUT_OF_RANGE", "POLICY_VIOLATION", "UNACCEPTABLE_CREDENTIAL", "UNSUPPORTED_SASL_MECHANISM"),
        *("UNSUPPORTED_COMPRESSION_TYPE", "BROKER_ID_NOT_REGISTERED"),
    }
)


_Value = TypeVar("_Value")
_More = ParamSpec("_More")


class BadText(Exception):
    """A text is no time, no place, or whatever else it should be; the error says only what to write.

    Whoever asked for the text adds where it stood: a flag, or a field of a page.
    """


class BadTime(BadText):
    """A text is no time. Whoever asked for it also adds which zone a time without one is in."""


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
    """Parse what a flag was given. Raises CliError, which names the flag, where `parse` raises BadText."""
    try:
        return parse(text, *args, **kwargs)
    except BadText as error:
        zone = "; without a zone it is UTC" if isinstance(error, BadTime) else ""
        raise CliError(f"{flag} {text}: {error}{zone}", USAGE_ERROR) from error


def exit_code_of(error: Exception) -> int:
    """Return 2 if an error says that the call is wrong, also one of the broker or its supervisor, else 1."""
    from mpbroker.client.errors import ApiFailed, ConfigError
    from mpbroker.ipc.control_client import ControlError

    if isinstance(error, CliError):
        return error.exit_code
    if isinstance(error, ApiFailed):
        return USAGE_ERROR if error.code.name in WRONG_INPUT else RUNTIME_ERROR
    if isinstance(error, ControlError):
        return USAGE_ERROR if error.is_wrong_call else RUNTIME_ERROR
    return USAGE_ERROR if isinstance(error, ConfigError) else RUNTIME_ERROR


def with_advice(error: Exception, advice: str) -> CliError:
    """Make an error with the same text and exit code, and then what to do."""
    return CliError(f"{error}{advice}", exit_code_of(error))


def raise_all(failed: Sequence[Exception]) -> None:
    """Raise one error for those of several topics or groups, whose others are done; none if there are none.

    Its exit code is 2 if all of them are.
    """
    if failed:
        raise CliError("\n".join(map(str, failed)), min(map(exit_code_of, failed)))


@contextmanager
def file_named(what: str) -> Iterator[None]:
    """Add a file's name to errors of reads and writes, which have none."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = what
        raise


@contextmanager
def explaining_openssl() -> Iterator[None]:
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


def file_error(error: OSError, otherwise: object = "") -> CliError:
    """Make an error that names the file, what is wrong with it, and what to do.

    `otherwise`: the file, if the error names none.
    """
    where = error.filename if error.filename is not None else otherwise
    advice = ". Run this as its owner: the broker's user" if isinstance(error, PermissionError) else ""
    return CliError(f"{where}: {error.strerror or error}{advice}")
