"""Titles of the broker's processes: what ps shows of them, `mpbroker 9092: handler 0`."""

from __future__ import annotations

import setproctitle

from mpbroker.config.broker import BrokerConfig

_broker = "mpbroker"


def name_broker(config: BrokerConfig) -> None:
    """Name the broker by the port of its first listener, or the path: a host may have several brokers.

    Call it when the ports are bound, before the first fork.
    """
    global _broker
    first = config.listeners[0]
    _broker = f"mpbroker {first.path or first.port}"


def is_of_broker(title: str) -> bool:
    """Return whether a process with such a title is one of a broker's."""
    name, colon, _ = title.partition(": ")
    return bool(colon) and name.startswith("mpbroker ")


def is_left_over(title: str) -> bool:
    """Return whether a process that is not a child of the supervisor is left over from an earlier one.

    The title of a process that is ending has only its beginning left.
    """
    return title.startswith("mpbroker ") and not title.endswith(": supervisor")


def entitle(about: str) -> None:
    """Set the title of this process: its part, and its broker."""
    setproctitle.setproctitle(f"{_broker}: {about.strip()}")
