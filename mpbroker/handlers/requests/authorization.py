"""What clients of this handler may do, by the access control entries that the coordinator has published.

Without an authorizer all clients may do everything. Granted permissions are remembered until an entry
changes. Those to produce and to fetch are also in the turn's native table, by connection. Refusals are not
remembered. (Kafka: AuthHelper.)
"""

from __future__ import annotations

from typing import Final

from mpbroker.handlers.hot_path.topic_table import TopicTable
from mpbroker.handlers.requests.audit import denied
from mpbroker.handlers.requests.metadata import Topic
from mpbroker.handlers.requests.permissions import RULES, Need, name_in
from mpbroker.handlers.requests.request import ReceivedRequest
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.security.acls import CLUSTER_NAME, OPERATIONS, Operation, ResourceType
from mpbroker.security.audit import Audit
from mpbroker.security.authorizer import Authorizer, Client
from shm.clock import monotonic_ms

REMEMBERED_MAX: Final = 16_384
# Longer names are decided each time: clients choose them, and they would stay in memory.
NAME_LENGTH_MAX: Final = 255


class Authorization:
    """Decides by `authorizer` what clients may do. If it is None, they may do everything."""

    def __init__(self, authorizer: Authorizer | None, grants: TopicTable, audit: Audit) -> None:
        self._authorizer = authorizer
        self._audit = audit
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
        """The table of access control entries, None without an authorizer."""
        return self._authorizer

    def refresh(self) -> None:
        """Forget all decisions, because entries have changed."""
        self._allowed.clear()
        self._any.clear()
        self._grants.revoke_grants()

    def allows(self, request: ReceivedRequest, need: Need, name: str, *, is_logged: bool = True) -> bool:
        """Return True if the client has the permission `need` for the resource of this name.

        `is_logged`: write a refusal to the audit log. It is False if the name is not in the client's request.
        """
        if self._authorizer is None:
            return True
        session = request.session
        client = Client(session.principal, session.client_host)
        key = client, need, name
        if key in self._allowed:
            return True
        verdict = self._authorizer.authorize(client, need.operation, need.resource_type, name)
        if is_logged and not verdict.is_allowed:
            refusal = denied(client, request.listener_name, need, name, request.slot.api_key, verdict)
            self._audit.tell(monotonic_ms(), refusal)
        # Only names in requests are likely to come again soon.
        if is_logged and verdict.is_allowed and len(name) <= NAME_LENGTH_MAX:
            self._remember(key)
        return verdict.is_allowed

    def _remember(self, key: tuple[Client, Need, str]) -> None:
        if len(self._allowed) >= REMEMBERED_MAX:
            self._allowed.clear()
        self._allowed.add(key)

    def allows_topic(self, request: ReceivedRequest, need: Need, topic: Topic) -> bool:
        """Return what `allows` returns for an existing topic. If that is True, also call `grant`."""
        if not self.allows(request, need, topic.name):
            return False
        self.grant(request, need, topic)
        return True

    def grant(self, request: ReceivedRequest, need: Need, topic: Topic) -> None:
        """Record for the native code that the connection may do the operation of `need` on the topic."""
        self._grants.grant(request.slot.connection, topic.topic_id, need.operation)

    def allows_cluster(self, request: ReceivedRequest, need: Need, *, is_logged: bool = True) -> bool:
        return self.allows(request, need, CLUSTER_NAME, is_logged=is_logged)

    def allows_any_topic(self, request: ReceivedRequest, operation: Operation) -> bool:
        """Return True if the client may do the operation to at least one topic."""
        if self._authorizer is None:
            return True
        key = Client(request.session.principal, request.session.client_host), operation
        known = self._any.get(key)
        if known is None:
            known = self._authorizer.authorize_any(*key, ResourceType.TOPIC)
            if len(self._any) >= REMEMBERED_MAX:
                self._any.clear()
            self._any[key] = known
        return known

    def refusal(self, request: ReceivedRequest, body: object) -> ErrorCode | None:
        """Return the error if the client lacks a permission that the whole request needs, else None."""
        key = ApiKey(request.slot.api_key)
        rule = RULES[key]
        if not rule.request or self._authorizer is None:
            return None
        if rule.alternative is not None and self.allows_cluster(request, rule.alternative, is_logged=False):
            return None
        for need in rule.request:
            name = name_in(body, key, need.resource_type)
            if name is not None and not self.allows(request, need, name):
                return need.denied
        return None

    def operations(self, request: ReceivedRequest, kind: ResourceType, name: str) -> int:
        """Return the operations that the client may do to a resource, as a bit field (KIP-430)."""
        if self._authorizer is None:
            return sum(1 << operation for operation in OPERATIONS[kind])
        client = Client(request.session.principal, request.session.client_host)
        return self._authorizer.operations(client, kind, name)
