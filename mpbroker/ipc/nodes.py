"""The file `mpbroker.nodes`: the brokers of a cluster with a standby, and which of them leads.

Without the file the cluster has one broker. The owner's tier process writes it into the first log directory,
a standby into the directory of its face (`ipc/mirror.py`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from mpbroker.ipc.replaced_files import FollowedFile, write_json

NODES_FILE: Final = "mpbroker.nodes"


class Node(msgspec.Struct, frozen=True):
    """A broker. `listeners` has the advertised host and port by the name of the listener.

    A replica serves reads of what the leader's newest cut has, and never leads.
    """

    id: int
    rack: str = ""
    listeners: dict[str, tuple[str, int]] = {}
    is_replica: bool = False


class Nodes(msgspec.Struct, frozen=True):
    """All brokers. `leader` is the id of the one that leads, `generation` counts the owners of the ledger."""

    leader: int
    generation: int
    nodes: list[Node]


def write_nodes(directory: Path, nodes: Nodes) -> None:
    """Replace the file in a log directory. Raises OSError."""
    write_json(directory / NODES_FILE, nodes)


def followed_nodes(directory: Path) -> FollowedFile[Nodes]:
    """Return the file in a log directory, to be read after each replacement."""
    return FollowedFile(directory / NODES_FILE, Nodes)
