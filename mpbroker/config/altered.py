"""What clients have altered of the broker's settings (AlterConfigs), as it stands in a configuration."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec


class Beneath(msgspec.Struct, frozen=True):
    """What file and flags say of an altered key. `origin`: where; "" for the default."""

    text: str | None
    origin: str


class Altered(msgspec.Struct, frozen=True):
    """Texts by key. `broker`: of this very broker, which count first; `default`: of all brokers."""

    broker: dict[str, str] = {}
    default: dict[str, str] = {}
    beneath: dict[str, Beneath] = {}

    def text(self, key: str) -> str | None:
        """The one that counts."""
        return self.broker.get(key, self.default.get(key))

    def differing(self, other: Altered) -> Iterator[str]:
        """Keys of which the two say different things."""
        for key in {*self.broker, *self.default, *other.broker, *other.default}:
            mine = (self.broker.get(key), self.default.get(key))
            if mine != (other.broker.get(key), other.default.get(key)):
                yield key
