"""`mpbroker.json` in each log directory: where the broker that uses the directory can be found while it runs.

Written by the supervisor; read by `mpbroker ctl` and by Spark, which know the log directory only.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

POINTER_NAME = "mpbroker.json"
# Names of files in the runtime directory that the pointer names.
PUBLIC_NAME = "public"
CONTROL_NAME = "control.sock"


class Pointer(msgspec.Struct):
    """The content of the file.

    `pid` is the supervisor's. `listeners` has the address of each listener by its name, `host:port` or
    `unix:/path`, with the port that port 0 became; `http` that of metrics and health, "" without one.
    """

    runtime_dir: str
    pid: int
    node_id: int
    listeners: dict[str, str] = {}
    http: str = ""


def write_pointer(log_dir: Path, pointer: Pointer) -> None:
    path = log_dir / POINTER_NAME
    making = path.with_suffix(".json.tmp")
    try:
        making.write_bytes(msgspec.json.encode(pointer) + b"\n")
        making.rename(path)
    except OSError:
        making.unlink(missing_ok=True)
        raise


def read_pointer(log_dir: Path) -> Pointer | None:
    """Read the pointer in a log directory; None if there is none: no broker runs on the directory.

    Raises OSError, msgspec.DecodeError.
    """
    try:
        return msgspec.json.decode((log_dir / POINTER_NAME).read_bytes(), type=Pointer)
    except FileNotFoundError:
        return None
