"""Topics that Metadata requests create have a share of the broker's partitions."""

from __future__ import annotations

from mpbroker.ipc.calls import Account, CreatePartitions, CreateTopic, MorePartitions
from mpbroker.protocol.errors import ErrorCode
from tests.support.decider_rig import DeciderRig

REFUSED = ErrorCode.POLICY_VIOLATION


def asked(rig: DeciderRig, user: str | None, *names: str) -> list[int]:
    """Ask for topics; return the error code of each."""
    account = None if user is None else Account(user, "client")
    made = rig.create(*map(CreateTopic, names), automatic=True, account=account)
    return [error for _, error, _ in made]


def rig_of(share: int, limit: int = 100) -> DeciderRig:
    return DeciderRig(limit, max_auto_created_partitions_per_principal=share, num_partitions=2)


def test_a_principal_has_a_share() -> None:
    rig = rig_of(share=6)
    assert asked(rig, "eve", "a", "b") == [0, 0]
    assert asked(rig, "eve", "c", "d") == [0, REFUSED]
    assert asked(rig, "eve", "d") == [REFUSED]
    # A topic that is there is nobody's growth, and others have their own share.
    assert asked(rig, "eve", "a") == [0]
    assert asked(rig, "ann", "d") == [0]
    assert rig.create(CreateTopic("e", 20)) == [("e", 0, None)]


def test_deleted_topics_give_their_share_back() -> None:
    rig = rig_of(share=4)
    assert asked(rig, "eve", "a", "b", "c") == [0, 0, REFUSED]
    rig.delete(["a"])
    assert asked(rig, "eve", "c", "d") == [0, REFUSED]


def test_many_principals_leave_a_quarter() -> None:
    """The coordinator's own topics and those that are created by name may have it."""
    rig = rig_of(share=10, limit=16)
    assert [asked(rig, f"user-{n}", f"topic-{n}") for n in range(7)] == [[0]] * 6 + [[REFUSED]]
    assert asked(rig, None, "__consumer_offsets") == [0]
    assert rig.create(CreateTopic("by-name", 2)) == [("by-name", 0, None)]


def test_the_last_partitions_are_super_users() -> None:
    """If there are permissions; without them everybody may do everything."""
    settings = {"authorizer_class_name": "StandardAuthorizer", "super_users": "User:root;User:admin"}
    for authorizer, rest in ((settings, ErrorCode.INVALID_PARTITIONS), ({}, ErrorCode.NONE)):
        rig = DeciderRig(128, **authorizer)
        eve, root = Account("eve", "client"), Account("root", "client")
        assert rig.create(CreateTopic("a", 126), account=eve)[0][1] == ErrorCode.NONE
        assert rig.create(CreateTopic("b", 1), account=eve)[0][1] == rest
        more = rig.results(CreatePartitions([MorePartitions("a", 127)], account=eve))
        assert [error for error, _ in more] == [rest]
        rig.delete(["b"])
        assert rig.create(CreateTopic("c", 1), account=root)[0][1] == ErrorCode.NONE


def test_a_share_of_nothing() -> None:
    assert asked(rig_of(share=0), "eve", "a") == [REFUSED]
