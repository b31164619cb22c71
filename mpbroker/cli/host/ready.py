"""`mpbroker ctl ready`: whether the broker serves, for probes and scripts."""

import re
import sys
import time
from typing import Any

from mpbroker.cli.errors import RUNTIME_ERROR, CliError, exit_code_of
from mpbroker.cli.host.local_broker import LocalBroker
from mpbroker.cli.text.output import print_json
from mpbroker.ipc.control_client import ControlError

# Between two polls: short at first, since most starts take a moment.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.02, 0.5
# A probe has to come to an end; the supervisor of a broker that lives answers in some milliseconds.
ANSWER_TIMEOUT_S = 5.0
# Print the reason this early, in case the flags name the wrong broker.
PRINTS_AFTER_S = 3.0
_CLAUSE_END = re.compile(r"[:;.] | \(")


def ready(here: LocalBroker, wait_s: float | None, *, as_json: bool) -> int:
    """Print whether the broker is ready, waiting up to `wait_s`; return the exit code. Raises CliError."""
    began = time.monotonic()
    deadline = began + (wait_s or 0)
    pause_s, is_printed = FIRST_PAUSE_S, False
    while problems := (reply := _asked(here, waits=wait_s is not None))["problems"]:
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            break
        if not is_printed and time.monotonic() > began + PRINTS_AFTER_S:
            # One cause, in short: the others mostly follow from it. All are printed if the wait is in vain.
            cause = _CLAUSE_END.split(problems[0], maxsplit=1)[0]
            print(f"mpbroker: waiting {left_s:.0f} s more: {cause}", file=sys.stderr, flush=True)
            is_printed = True
        time.sleep(min(pause_s, left_s))
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
    if as_json:
        print_json(reply)
    else:
        ready = "ready, as a standby" if reply.get("standby") else "ready"
        print(ready if not problems else "\n".join(f"not ready: {one}" for one in problems))
    return RUNTIME_ERROR if problems else 0


def _asked(here: LocalBroker, *, waits: bool) -> dict[str, Any]:
    try:
        # Another broker that serves must not be taken for a broker that is still to start.
        client = here.control(or_default=not waits)
        client.timeout_seconds = ANSWER_TIMEOUT_S
        return client.call("ready")
    except (CliError, ControlError) as error:
        if exit_code_of(error) != RUNTIME_ERROR and not waits:
            raise
        return {"ready": False, "problems": [str(error)]}
