"""Messages of their own beside error codes, wherever a response has room for them."""

from __future__ import annotations

from mpbroker.protocol import messages as m
from mpbroker.protocol.error_messages import explain
from mpbroker.protocol.errors import ErrorCode

CODE = ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def test_only_what_has_the_error_is_explained() -> None:
    result = m.CreateTopicsResponse.CreatableTopicResult
    response = m.CreateTopicsResponse(
        topics=[result("a", error_code=CODE), result("b", error_code=0, error_message=None)]
    )
    explain(response, CODE, "why")
    assert [one.error_message for one in response.topics] == ["why", None]


def test_the_response_itself_and_what_lies_deep_in_it() -> None:
    of = m.ElectLeadersResponse
    response = of(
        CODE, replica_election_results=[of.ReplicaElectionResult("a", [of.PartitionResult(0, CODE)])]
    )
    explain(response, CODE, "why")
    assert response.replica_election_results[0].partition_result[0].error_message == "why"
    acls = m.DescribeAclsResponse(error_code=CODE)
    explain(acls, CODE, "why")
    assert acls.error_message == "why"


def test_a_response_without_room_stays_as_it_is() -> None:
    response = m.DeleteGroupsResponse(results=[m.DeleteGroupsResponse.DeletableGroupResult("g", CODE)])
    explain(response, CODE, "why")
    assert response.results[0].error_code == CODE
