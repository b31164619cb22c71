"""The time that a client counts its waits by."""

import time


def monotonic_ms() -> float:
    return time.monotonic() * 1000
