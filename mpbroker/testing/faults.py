"""`Fault`: what a broker does to requests because a test wants it, and how often it has done so."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from mpbroker.ipc import faults
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from mpbroker.testing.broker import Broker


class Fault:
    """A fault of `Broker.fault`, until `clear` or the end of the with statement that has it."""

    def __init__(self, broker: Broker, told: faults.Fault) -> None:
        self.told = told
        self._broker = broker
        self._hits_at_the_end = 0

    @property
    def hits(self) -> int:
        """Return how many requests have met it."""
        try:
            size = Path(self.told.hits).stat().st_size
        except FileNotFoundError:
            return self._hits_at_the_end
        return min(size, self.told.times or size)

    def clear(self) -> None:
        """Take the fault back: requests that come now do not meet it. Idempotent. Raises BrokerFailed."""
        self._broker.clear_faults(self)

    def forget(self) -> None:
        """Remove the file that counts its hits, and keep their number."""
        self._hits_at_the_end = self.hits
        Path(self.told.hits).unlink(missing_ok=True)

    def __enter__(self) -> Fault:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.clear()


def api_key(name: str | int) -> int:
    """Return the key of an API by its name: `ListOffsets`, `LIST_OFFSETS` or `list_offsets`.

    The broker checks numbers. Raises ValueError.
    """
    if isinstance(name, int):
        return name
    by_name = {_plain(key.name): key for key in ApiKey}
    if _plain(name) not in by_name:
        raise ValueError(f"Kafka has no API {name!r}: name one such as Produce, Fetch or ListOffsets")
    return by_name[_plain(name)]


def error_code(name: str | int) -> int:
    """Return an error code by its name in Kafka's `Errors`; the broker checks numbers. Raises ValueError."""
    if isinstance(name, int):
        return name
    try:
        return ErrorCode[name.upper()]
    except KeyError:
        raise ValueError(f"Kafka has no error {name!r}: name one such as NOT_LEADER_OR_FOLLOWER") from None


def _plain(name: str) -> str:
    return name.replace("_", "").lower()
