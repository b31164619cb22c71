"""Ends a command: writes its output, prints a failure as one line, and exits with the failure's code."""

from __future__ import annotations

import errno
import signal
import sys
from collections.abc import Callable
from typing import NoReturn

from mpbroker.cli.errors import RUNTIME_ERROR, CliError, exit_code_of, file_error
from mpbroker.cli.text import standard_output


def end(code: int) -> NoReturn:
    """Write the buffered output, and exit with `code`, or with the code of an error in writing."""
    code = exit_code(standard_output.flush) or code
    standard_output.give_up_errors()
    sys.exit(code)


def exit_code(call: Callable[[], object]) -> int:
    """Run a command and return its exit code. Print a failure; let exceptions that are bugs propagate."""
    try:
        call()
    except SystemExit as ended:
        return int(ended.code or 0)
    except CliError as error:
        return say(str(error), error.exit_code)
    except (BrokenPipeError, standard_output.ReaderGone):
        # The output has no reader (`| head`): end as programs that the signal kills.
        standard_output.give_up()
        return 128 + signal.SIGPIPE
    except OSError as error:
        if error.filename is None and error.errno in (errno.ENOSPC, errno.EDQUOT):
            # The error of a write names no file; the command's arguments do.
            return say(f"{error.strerror}: make room, and run the command again", RUNTIME_ERROR)
        if error.filename is None or error.strerror is None:
            raise
        if error.filename == standard_output.NAME:
            standard_output.give_up()
        return say(str(file_error(error)), RUNTIME_ERROR)
    except Exception as error:
        # Imported here, since most commands raise neither of these errors.
        from mpbroker.client.errors import ClientError
        from mpbroker.ipc.control_client import ControlError

        if not isinstance(error, ClientError | ControlError):
            raise
        return say(str(error), exit_code_of(error))
    return 0


def say(text: str, code: int) -> int:
    from mpbroker.protocol.printable import printable

    for line in text.splitlines():
        print(f"mpbroker: {printable(line)}", file=sys.stderr)
    return code
