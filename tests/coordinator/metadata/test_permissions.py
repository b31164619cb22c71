"""Permissions in the coordinator: they follow the durable entries, and decide as handlers do."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from functools import partial

import pytest

from mpbroker.config.broker import STANDARD_AUTHORIZER, BrokerConfig
from mpbroker.coordinator.metadata.permissions import Permissions
from mpbroker.coordinator.metadata_controller import Phase
from mpbroker.coordinator.process import Coordinator
from mpbroker.coordinator.runtime.requests import RequestContext
from mpbroker.ipc.acls import AclFilterImage, AclImage
from mpbroker.ipc.calls import CreateAcls, DeleteAcls, Message
from mpbroker.ipc.process import ProcessContext
from mpbroker.ipc.topology import COORDINATOR
from mpbroker.security.acls import Operation, PatternType, Permission, ResourceType
from mpbroker.security.authorizer import Client
from shm.clock import wall_ms
from tests.support.coordinator_tree import CLUSTER_ID, CoordinatorTree
from tests.support.polling import until

ANN = RequestContext(None, 1, "c", "/10.0.0.1", "User:ann").client
ROOT = Client("User:root", "10.0.0.1")
PREFIX = AclImage(
    ResourceType.TOPIC, "ord", PatternType.PREFIXED, "User:ann", "10.0.0.1", Operation.READ, Permission.ALLOW
)
DENIED = PREFIX._replace(
    resource_name="orders-2", pattern_type=PatternType.LITERAL, host="*", permission=Permission.DENY
)
OF_ALL = AclFilterImage(1, None, 1, None, None, 1, 1)
RULES = {"authorizer_class_name": STANDARD_AUTHORIZER, "super_users": "User:root"}


def may_describe(permissions: Permissions, *names: str, client: Client = ANN) -> list[bool]:
    allowed = partial(permissions.is_allowed, client, Operation.DESCRIBE, ResourceType.TOPIC)
    return [allowed(name) for name in names]


@pytest.mark.parametrize(
    ("settings", "allowed"),
    [({}, True), (RULES, False), ({**RULES, "allow_everyone_if_no_acl_found": True}, True)],
    ids=["no authorizer", "no entry", "everyone without entry"],
)
def test_without_entries_the_settings_decide(settings: dict[str, object], allowed: bool) -> None:
    permissions = Permissions(BrokerConfig(**settings))  # type: ignore[arg-type]
    assert may_describe(permissions, "orders") == [allowed]
    assert may_describe(permissions, "orders", client=ROOT) == [True]


def test_entries_are_followed_also_by_a_successor(make_tree: Callable[..., CoordinatorTree]) -> None:
    tree = make_tree(**RULES)

    def started() -> tuple[Coordinator, Callable[[], None]]:
        context = ProcessContext(COORDINATOR, tree.memory, tree.config)
        coordinator = Coordinator(context, CLUSTER_ID, wall_ms, lambda: uuid.uuid4().bytes)

        def turn() -> None:
            coordinator.step()
            tree.pump()

        until(lambda: coordinator.metadata.phase is Phase.SERVING, "the coordinator serves", turn)
        return coordinator, turn

    def ask(call: Message, turn: Callable[[], None]) -> None:
        handler = tree.handlers[0]
        number = handler.call(call)
        until(lambda: number in handler.answers, "the call is answered", turn)

    coordinator, turn = started()
    names = ("orders", "orders-2", "other")
    assert may_describe(coordinator.metadata.permissions, *names) == [False, False, False]
    ask(CreateAcls([PREFIX]), turn)
    assert may_describe(coordinator.metadata.permissions, *names) == [True, True, False]
    ask(CreateAcls([DENIED._replace(operation=Operation.ALL)]), turn)
    assert may_describe(coordinator.metadata.permissions, *names) == [True, False, False]
    elsewhere = ANN._replace(host="10.0.0.2")
    assert may_describe(coordinator.metadata.permissions, "orders", client=elsewhere) == [False]

    # The supervisor resets the rings of a dead process.
    tree.memory.reset_rings_of(COORDINATOR)
    for fake in tree.handlers:
        fake.rebind()
    assert tree.log is not None
    tree.log.inbox.rebind()
    tree.log.outbox.rebind()
    successor, turn = started()
    assert may_describe(successor.metadata.permissions, *names) == [True, False, False]
    ask(DeleteAcls([OF_ALL._replace(permission=Permission.DENY)]), turn)
    assert may_describe(successor.metadata.permissions, *names) == [True, True, False]
