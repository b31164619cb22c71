"""Bulletins for processes other than handlers, one for each purpose.

Processors get credentials, acceptors get the connection rates of addresses, the supervisor gets the altered
broker settings. Each process reads only the bulletins that it needs: a handler holds no credentials that it
could leak, and an acceptor does not read the metadata of all topics for a few rates.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable
from typing import Generic, TypeAlias, TypeVar

import msgspec

from mpbroker.coordinator.bulletins.bulletin_writer import BulletinWriter, Written
from mpbroker.coordinator.metadata.scram_rules import Credentials
from mpbroker.coordinator.metadata.state import MetadataState
from mpbroker.ipc.broker_settings import BrokerSettings
from mpbroker.ipc.bulletin import BulletinPublisher
from mpbroker.ipc.credentials import CredentialBase, CredentialDelta, ScramImage, TokenImage
from mpbroker.ipc.limits import LimitImage, LimitNews
from mpbroker.quotas.entities import CONNECTION_CREATION_RATE, IP, Entity, QuotaTable
from mpbroker.security.delegation import Token, TokenMacs

K = TypeVar("K")
CredentialKey: TypeAlias = tuple[str, int] | str
"""A user and a mechanism, or the id of a delegation token."""


class NewsAnnouncer(BulletinWriter, Generic[K]):
    """The writer of a bulletin that is not for handlers.

    `everything(state)` makes a base, `some(state, keys)` makes a delta with the changed keys.
    """

    def __init__(
        self,
        publisher: BulletinPublisher,
        what: str,
        everything: Callable[[MetadataState], msgspec.Struct],
        some: Callable[[MetadataState, Iterable[K]], msgspec.Struct],
    ) -> None:
        super().__init__(publisher, what)
        self._everything = everything
        self._some = some
        self._changed: dict[K, None] = {}

    def changed(self, keys: Iterable[K], then: Callable[[], None]) -> None:
        self.has_news = True
        self._changed.update(dict.fromkeys(keys))
        self.then(then)

    def publish(self, state: MetadataState) -> bool:
        """Write the noted changes to the bulletin. Return False if there are none, or if they have to wait.

        They wait if the whole content has to be written (a base), until all readers have read the last base.
        """
        if not self.has_news:
            return False
        written = self.write(lambda: self._some(state, self._changed), lambda: self._everything(state))
        if written is Written.NOTHING:
            return False
        self._changed.clear()
        self.run_actions()
        return True


# ---- SCRAM credentials and delegation tokens, for processors


def credential_news(
    publisher: BulletinPublisher, macs: TokenMacs | None = None
) -> NewsAnnouncer[CredentialKey]:
    """Make the announcer of SCRAM credentials and, unless `macs` is None, of delegation tokens."""
    return NewsAnnouncer(
        publisher,
        "credentials",
        lambda state: _all_credentials(state, macs),
        lambda state, keys: _some_credentials(state, keys, macs),
    )


def _all_credentials(state: MetadataState, macs: TokenMacs | None) -> CredentialBase:
    credentials = [_credential(key, state.credentials) for key in state.credentials]
    if macs is None:
        return CredentialBase(credentials)
    return CredentialBase(credentials, [_token(one, macs) for one in state.tokens.values()])


def _some_credentials(
    state: MetadataState, keys: Iterable[CredentialKey], macs: TokenMacs | None
) -> CredentialDelta:
    delta = CredentialDelta([], [], [], [])
    for key in keys:
        if isinstance(key, str):
            if key not in state.tokens:
                delta.removed_tokens.append(key)
            elif macs is not None:
                delta.tokens.append(_token(state.tokens[key], macs))
        elif key in state.credentials:
            delta.changed.append(_credential(key, state.credentials))
        else:
            delta.removed.append(key)
    return delta


def _token(token: Token, macs: TokenMacs) -> TokenImage:
    return TokenImage(token.token_id, token.owner, token.ends_ms, macs.of(token.token_id))


def _credential(key: tuple[str, int], credentials: Credentials) -> ScramImage:
    one = credentials[key]
    return ScramImage(*key, one.iterations, one.salt, one.stored_key, one.server_key)


# ---- rates of addresses, for acceptors


def limit_news(publisher: BulletinPublisher) -> NewsAnnouncer[Entity]:
    return NewsAnnouncer(publisher, "rates of addresses", _all_limits, _some_limits)


def limited(entities: Iterable[Entity]) -> list[Entity]:
    """Return the entities that are addresses. Acceptors enforce the quotas of addresses."""
    return [entity for entity in entities if entity[0][0] == IP]


def _all_limits(state: MetadataState) -> LimitNews:
    entities = limited(entity for entity, _ in state.quotas)
    return LimitNews([_limit(entity, state.quotas) for entity in entities], everything=True)


def _some_limits(state: MetadataState, keys: Iterable[Entity]) -> LimitNews:
    return LimitNews([_limit(entity, state.quotas) for entity in keys])


def _limit(entity: Entity, quotas: QuotaTable) -> LimitImage:
    name = entity[0][1]
    return LimitImage(_packed(name), quotas.of(entity).get(CONNECTION_CREATION_RATE))


def _packed(name: str | None) -> bytes | None:
    """Return an address as bytes: 4 for IPv4 (also mapped into IPv6), 16 for IPv6. None stays None."""
    if name is None:
        return None
    address = ipaddress.ip_address(name)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).packed


# ---- settings of brokers, for the supervisor


def broker_news(publisher: BulletinPublisher) -> NewsAnnouncer[str]:
    """Make the announcer of altered broker settings. Each message has all settings, because they are few."""
    return NewsAnnouncer(publisher, "settings of brokers", _brokers, lambda state, _: _brokers(state))


def _brokers(state: MetadataState) -> BrokerSettings:
    return BrokerSettings(state.brokers_version, state.brokers)
