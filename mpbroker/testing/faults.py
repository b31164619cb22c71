"""`Fault`: a failure that a test injects into a broker's requests, with the number of affected requests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from mpbroker.ipc import faults


class Fault:
    """A fault made by `Broker.fault`. It ends with `clear`, or with the with statement that uses it."""

    def __init__(self, spec: faults.Fault, clear: Callable[[Fault], None]) -> None:
        """Make the fault that `spec` describes. `clear` is the function that removes it from the broker."""
        self.spec = spec
        self._clear = clear
        self._hits_at_the_end = 0

    @property
    def hits(self) -> int:
        """Return the number of requests that the fault was applied to."""
        try:
            size = Path(self.spec.hits).stat().st_size
        except FileNotFoundError:
            return self._hits_at_the_end
        return min(size, self.spec.times or size)

    def clear(self) -> None:
        """Remove the fault, so that later requests are served normally. Idempotent. Raises BrokerFailed."""
        self._clear(self)

    def forget(self) -> None:
        """Remove the file in which the broker counts hits, and keep the number of `hits`."""
        self._hits_at_the_end = self.hits
        Path(self.spec.hits).unlink(missing_ok=True)

    def __enter__(self) -> Fault:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.clear()
