"""Decisions about the clients of this handler, by the entries that the coordinator has published.

Without an authorizer everybody may do everything. What is allowed is remembered until an entry changes: here,
and for produces and fetches of a connection in the turn's native table. Refusals are decided anew. (Kafka:
AuthHelper.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol, TypeVar

from mpbroker.handlers.requests.audit import denied
from mpbroker.handlers.requests.metadata import Topic
from mpbroker.handlers.requests.permissions import RULES, Need, name_in
from mpbroker.ipc.listeners import AddedListener
from mpbroker.ipc.session import Session
from mpbroker.ipc.slots import Request
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.security.acls import CLUSTER_NAME, OPERATIONS, Operation, ResourceType
from mpbroker.security.audit import Audit
from mpbroker.security.authorizer import Authorizer, Client
from shm.clock import monotonic_ms

REMEMBERED_MAX: Final = 16_384
# Longer names are decided anew each time: clients choose them, and they would stay in memory.
NAME_LENGTH_MAX: Final = 255

Named = TypeVar("Named")


class Asking(Protocol):
    """A request, and the client that has sent it."""

    @property
    def session(self) -> Session: ...
    @property
    def slot(self) -> Request: ...


class Grants(Protocol):
    """What connections may do to topics without asking Python; see `hot_path.topic_table`."""

    def require_grants(self) -> None: ...
    def grant(self, connection: int, topic_id: bytes, operation: int, /) -> None: ...
    def revoke_grants(self) -> None: ...


class Authorization:
    """What clients may do, by `authorizer`; None: everything."""

    def __init__(
        self,
        authorizer: Authorizer | None,
        grants: Grants,
        audit: Audit,
        listener: Callable[[int], AddedListener],
    ) -> None:
        self._authorizer = authorizer
        self._audit = audit
        self._listener = listener
        self._grants = grants
        if authorizer is not None:
            grants.require_grants()
        self._allowed: set[tuple[Client, Need, str]] = set()
        self._any: dict[tuple[Client, Operation], bool] = {}

    @property
    def is_on(self) -> bool:
        return self._authorizer is not None

    @property
    def authorizer(self) -> Authorizer | None:
        """The entries, for those who describe them."""
        return self._authorizer

    def refresh(self) -> None:
        """Forget all decisions, because entries have changed."""
        self._allowed.clear()
        self._any.clear()
        self._grants.revoke_grants()

    def allows(self, asking: Asking, need: Need, name: str, *, is_told: bool = True) -> bool:
        """Return True if the client may do that to the resource of this name.

        `is_told`: log a refusal. It is False where the client has not asked for this name.
        """
        if self._authorizer is None:
            return True
        session = asking.session
        client = Client(session.principal, session.client_host)
        key = client, need, name
        if key in self._allowed:
            return True
        verdict = self._authorizer.authorize(client, need.operation, need.resource_type, name)
        if is_told and not verdict.is_allowed:
            listener = self._listener(asking.slot.listener).listener.name
            refusal = denied(client, listener, need, name, asking.slot.api_key, verdict)
            self._audit.tell(monotonic_ms(), refusal)
        # Only what is asked for by name comes again soon.
        if is_told and verdict.is_allowed and len(name) <= NAME_LENGTH_MAX:
            self._remember(key)
        return verdict.is_allowed

    def _remember(self, key: tuple[Client, Need, str]) -> None:
        if len(self._allowed) >= REMEMBERED_MAX:
            self._allowed.clear()
        self._allowed.add(key)

    def allows_topic(self, asking: Asking, need: Need, topic: Topic) -> bool:
        """Decide about a topic that exists. If that is allowed, the turn will know for this connection."""
        if not self.allows(asking, need, topic.name):
            return False
        self.grant(asking, need, topic)
        return True

    def grant(self, asking: Asking, need: Need, topic: Topic) -> None:
        """Let the turn know that the client may do this to a topic."""
        self._grants.grant(asking.slot.connection, topic.topic_id, need.operation)

    def allows_cluster(self, asking: Asking, need: Need, *, is_told: bool = True) -> bool:
        return self.allows(asking, need, CLUSTER_NAME, is_told=is_told)

    def allows_any_topic(self, asking: Asking, operation: Operation) -> bool:
        """Return True if the client may do the operation to at least one topic."""
        if self._authorizer is None:
            return True
        key = Client(asking.session.principal, asking.session.client_host), operation
        known = self._any.get(key)
        if known is None:
            known = self._authorizer.authorize_any(*key, ResourceType.TOPIC)
            if len(self._any) >= REMEMBERED_MAX:
                self._any.clear()
            self._any[key] = known
        return known

    def refusal(self, asking: Asking, body: object) -> ErrorCode | None:
        """Return the error for a client that lacks a need of the whole request, None if it may go on."""
        key = ApiKey(asking.slot.api_key)
        rule = RULES[key]
        if not rule.whole or self._authorizer is None:
            return None
        if rule.instead is not None and self.allows_cluster(asking, rule.instead, is_told=False):
            return None
        for need in rule.whole:
            name = name_in(body, key, need.resource_type)
            if name is not None and not self.allows(asking, need, name):
                return need.denied
        return None

    def operations(self, asking: Asking, kind: ResourceType, name: str) -> int:
        """Return the operations that the client may do to a resource, a bit each (KIP-430)."""
        if self._authorizer is None:
            return sum(1 << operation for operation in OPERATIONS[kind])
        client = Client(asking.session.principal, asking.session.client_host)
        return self._authorizer.operations(client, kind, name)
