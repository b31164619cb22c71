"""DescribeGroups and ListGroups."""

from __future__ import annotations

import pytest

from mpbroker.protocol.messages import DescribeGroupsRequest, ListGroupsRequest
from tests.support.group_rig import GroupRig


def test_describe_and_list(rig: GroupRig) -> None:
    ids, _ = rig.stable(2)
    described = rig.now(DescribeGroupsRequest(["g", "nowhere"]), version=6).groups
    assert (described[0].group_state, described[0].protocol_type, described[0].protocol_data) == (
        "Stable",
        "consumer",
        "range",
    )
    assert {m.member_id: m.member_assignment for m in described[0].members} == {i: i.encode() for i in ids}
    assert {(m.client_id, m.client_host) for m in described[0].members} == {("c", "/127.0.0.1")}
    assert (described[1].group_state, described[1].error_code) == ("Dead", 69)
    assert rig.now(DescribeGroupsRequest(["nowhere"]), version=5).groups[0].error_code == 0
    rig.join(group="h")
    listed = [(g.group_id, g.group_state, g.group_type) for g in rig.now(ListGroupsRequest()).groups]
    assert listed == [("g", "Stable", "classic"), ("h", "Empty", "classic")]
    assert [g.group_id for g in rig.now(ListGroupsRequest(["stable"], ["CLASSIC"])).groups] == ["g"]
    assert rig.now(ListGroupsRequest([], ["consumer"])).groups == []


def test_no_more_is_described_than_can_be_answered_at_once(
    rig: GroupRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.stable(2)
    request = DescribeGroupsRequest(["nowhere", "g", "elsewhere"])
    assert len(rig.now(request, version=6).groups) == 3
    monkeypatch.setattr("mpbroker.coordinator.groups.describe.DESCRIBED_BYTES", 1)
    assert [group.group_id for group in rig.now(request, version=6).groups] == ["nowhere", "g"]
