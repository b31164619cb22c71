"""Decides in the coordinator what clients may do.

Handlers check the permissions for a request. The coordinator checks permissions for its own later work, such
as finding the topics that a client's regular expression matches.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

from mpbroker.config.broker import BrokerConfig
from mpbroker.security.acls import Acl, Operation, ResourceType
from mpbroker.security.authorizer import Client, authorizer_of


class Permissions:
    """Decides by durable access control entries what clients may do (without an authorizer: everything)."""

    def __init__(self, config: BrokerConfig) -> None:
        self._authorizer = authorizer_of(config)

    def replace(self, acls: Iterable[Acl]) -> None:
        """Replace all entries by `acls`. Call this after the metadata log was read."""
        if self._authorizer is not None:
            self._authorizer.clear()
            for acl in acls:
                self._authorizer.put(acl)

    def update(self, changed: Iterable[Acl], there: Container[Acl]) -> None:
        """Add the changed entries that are in `there`, and remove the other changed ones."""
        if self._authorizer is not None:
            for acl in changed:
                change = self._authorizer.put if acl in there else self._authorizer.remove
                change(acl)

    def is_allowed(self, client: Client, operation: Operation, kind: ResourceType, name: str) -> bool:
        """Return whether the client may do `operation` to the resource of this type and name."""
        authorizer = self._authorizer
        return authorizer is None or authorizer.authorize(client, operation, kind, name).is_allowed
