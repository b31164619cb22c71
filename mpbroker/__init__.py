"""A broker that speaks Kafka's protocol: Python processes that share memory, with native fast paths."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mpbroker.reading.arrow import read

__all__ = ["read"]


def __getattr__(name: str) -> Any:
    # Every process of a broker imports this package, and none of them wants Arrow.
    if name == "read":
        from mpbroker.reading.arrow import read

        return read
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
