"""Trying again when the broker says that it may help, for a while and not too often."""

import time

from mpbroker.client.errors import ClientError

GIVE_UP_AFTER_SECONDS = 30.0
PAUSE_SECONDS = 0.1


class Retry:
    """The patience of one operation, counted from its start or its last success."""

    def __init__(self, give_up_after_seconds: float = GIVE_UP_AFTER_SECONDS) -> None:
        self._give_up_after_seconds = give_up_after_seconds
        self.succeeded()

    def succeeded(self) -> None:
        self._deadline = time.monotonic() + self._give_up_after_seconds

    def pause_or_raise(self, error: ClientError) -> None:
        """Waits a little, or raises the error if it is final or has lasted too long."""
        if not error.retriable or time.monotonic() >= self._deadline:
            raise error
        time.sleep(PAUSE_SECONDS)
