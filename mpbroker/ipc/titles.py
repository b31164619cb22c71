"""Titles of the broker's processes, which ps shows, such as `mpbroker 9092: handler 0`."""

from __future__ import annotations

import setproctitle

from mpbroker.config.broker import BrokerConfig

_broker = "mpbroker"


def name_broker(config: BrokerConfig) -> None:
    """Name the broker, in all titles, by the port or the path of its first listener.

    Call this when the ports are bound, before the first fork.
    """
    global _broker
    first = config.listeners[0]
    _broker = f"mpbroker {first.path or first.port}"


def is_of_broker(title: str) -> bool:
    """Return whether this is the title of a process of a broker."""
    name, colon, _ = title.partition(": ")
    return bool(colon) and name.startswith("mpbroker ")


def is_left_over(title: str) -> bool:
    """Return whether a process with this title may be a child of an earlier supervisor.

    A child of this supervisor has such a title, too. The end of the title may be missing: a process that is
    ending can have lost it.
    """
    return title.startswith("mpbroker ") and not title.endswith(": supervisor")


def entitle(about: str) -> None:
    """Set the title of this process to the broker's name and `about`."""
    setproctitle.setproctitle(f"{_broker}: {about.strip()}")
