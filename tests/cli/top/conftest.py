"""A broker with records and a group, for `mpbroker top` to look at."""

from __future__ import annotations

from tests.support.filled_broker import filled_broker

__all__ = ["filled_broker"]
