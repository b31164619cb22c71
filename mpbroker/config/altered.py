"""The broker's settings that clients have altered (AlterConfigs), as a configuration holds them."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec


class Beneath(msgspec.Struct, frozen=True):
    """The text that an altered key has in file and flags. `origin`: its place; "" for the default."""

    text: str | None
    origin: str


class Altered(msgspec.Struct, frozen=True):
    """Altered texts by key: `broker` for this broker alone, which take precedence, `default` for all."""

    broker: dict[str, str] = {}
    default: dict[str, str] = {}
    beneath: dict[str, Beneath] = {}

    def text(self, key: str) -> str | None:
        """Return the altered text of a key, this broker's own first; None if there is none."""
        return self.broker.get(key, self.default.get(key))

    def differing(self, other: Altered) -> Iterator[str]:
        """Yield the keys whose texts differ between the two."""
        for key in {*self.broker, *self.default, *other.broker, *other.default}:
            mine = (self.broker.get(key), self.default.get(key))
            if mine != (other.broker.get(key), other.default.get(key)):
                yield key
