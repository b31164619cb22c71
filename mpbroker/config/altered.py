"""The broker's settings that clients have altered (AlterConfigs). They are a part of `BrokerConfig`."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec


class Beneath(msgspec.Struct, frozen=True):
    """A key's text before clients altered it. `origin`: its place in file or flags; "" for the default."""

    text: str | None
    origin: str


class Altered(msgspec.Struct, frozen=True):
    """Altered texts by key. The texts of this broker (`broker`) override those of all brokers (`default`)."""

    broker: dict[str, str] = {}
    default: dict[str, str] = {}
    beneath: dict[str, Beneath] = {}

    def text(self, key: str) -> str | None:
        """Return the key's text in `broker`, or else in `default`; None if the key is not altered."""
        return self.broker.get(key, self.default.get(key))

    def differing(self, other: Altered) -> Iterator[str]:
        """Yield the keys that have another text in `other`, or a text in one of the two objects only."""
        for key in {*self.broker, *self.default, *other.broker, *other.default}:
            mine = (self.broker.get(key), self.default.get(key))
            if mine != (other.broker.get(key), other.default.get(key)):
                yield key
