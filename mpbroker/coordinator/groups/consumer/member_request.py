"""A request of a member on its way through the steps that change the member and its group."""

from __future__ import annotations

from dataclasses import dataclass

from mpbroker.coordinator.groups.consumer.changes import Changes
from mpbroker.coordinator.groups.consumer.group import ConsumerGroup, Member
from mpbroker.coordinator.groups.consumer.reconciliation import Owned
from mpbroker.coordinator.runtime.requests import RequestContext


@dataclass(eq=False)
class MemberRequest:
    """A ConsumerGroupHeartbeat, or a JoinGroup of a member that uses the classic protocol.

    `member`: as the steps have left it. `before`: as it was when the request came. `owned`: what the client
    says it has, None if it does not say. `bumps`: the epoch of the group must grow. `subscription_changed`:
    the member named other topics or another pattern.
    """

    context: RequestContext
    changes: Changes
    member: Member
    before: Member
    owned: Owned | None
    bumps: bool = False
    subscription_changed: bool = False

    @property
    def group(self) -> ConsumerGroup:
        return self.changes.group

    def read_member(self) -> None:
        """Set `member` to the member as its changed records describe it."""
        self.member = self.group.members[self.member.member_id]
