"""Access control entries in the coordinator: what is refused, what records say, what handlers are told."""

from __future__ import annotations

import pytest

from mpbroker.coordinator.metadata import acl_rules
from mpbroker.coordinator.metadata.image_sizes import NAME_BYTES_MAX, acl_bytes
from mpbroker.coordinator.metadata.state import InconsistentMetadata, MetadataState
from mpbroker.ipc.acls import AclFilterImage, AclImage
from mpbroker.ipc.calls import AlteredResources, CreateAcls, DeleteAcls, DeletedAcls
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import AccessControlEntryRecord, RemoveAccessControlEntryRecord
from mpbroker.security.acls import Acl
from tests.support.decider_rig import DeciderRig

ORDERS = AclImage(2, "orders", 3, "User:ann", "*", 3, 3)
EVERYTHING = AclFilterImage(1, None, 1, None, None, 1, 1)


class Log(DeciderRig):
    def create_acls(self, *acls: AclImage) -> list[tuple[int, str | None]]:
        return self.results(CreateAcls([*acls]))

    def delete_acls(self, *filters: AclFilterImage) -> DeletedAcls:
        answer = self.call(DeleteAcls([*filters]))
        assert isinstance(answer, DeletedAcls)
        return answer


@pytest.fixture
def log() -> Log:
    return Log()


def test_entries_come_and_go(log: Log) -> None:
    bob = ORDERS._replace(principal="User:bob")
    assert log.create_acls(ORDERS, bob) == [(0, None), (0, None)]
    assert list(log.state.acls) == [Acl(*ORDERS), Acl(*bob)]
    assert log.state.image_bytes == acl_bytes(Acl(*ORDERS)) + acl_bytes(Acl(*bob))
    answer = log.delete_acls(EVERYTHING._replace(principal="User:bob"), EVERYTHING._replace(host="10.0.0.1"))
    assert [one.acls for one in answer.results] == [[bob], []]
    assert list(log.state.acls) == [Acl(*ORDERS)]
    assert log.delete_acls(EVERYTHING).results[0].acls == [ORDERS]
    assert (log.state.image_bytes, log.state.acls_by_id) == (0, {})


def test_the_same_entry_again_needs_no_record(log: Log) -> None:
    decision = log.decide(CreateAcls([ORDERS, ORDERS]))
    assert len(decision.records) == 1
    assert decision.acls == [Acl(*ORDERS)]
    again = log.decide(CreateAcls([ORDERS]))
    assert (again.records, again.acls) == ([], [])
    assert again.answer == AlteredResources([(0, None)])


def test_each_entry_has_its_own_result(log: Log) -> None:
    wrong = ORDERS._replace(operation=1)
    long = ORDERS._replace(principal="User:" + "x" * NAME_BYTES_MAX)
    results = log.create_acls(wrong, ORDERS, long)
    assert [code for code, _ in results] == [ErrorCode.INVALID_REQUEST, 0, ErrorCode.INVALID_REQUEST]
    assert "principal" in str(results[2][1])
    assert list(log.state.acls) == [Acl(*ORDERS)]


def test_a_wrong_filter_deletes_nothing(log: Log) -> None:
    log.create_acls(ORDERS)
    answer = log.delete_acls(EVERYTHING._replace(resource_type=0), EVERYTHING._replace(operation=0))
    assert [one.error for one in answer.results] == [ErrorCode.INVALID_REQUEST] * 2
    assert len(log.state.acls) == 1


def test_an_entry_that_two_filters_match_is_removed_once(log: Log) -> None:
    log.create_acls(ORDERS)
    answer = log.delete_acls(EVERYTHING, EVERYTHING)
    assert [one.acls for one in answer.results] == [[ORDERS], [ORDERS]]
    assert log.state.acls == {}


def test_entries_have_to_fit_into_what_handlers_are_told() -> None:
    log = Log(image_bytes_max=2 * acl_bytes(Acl(*ORDERS)))
    codes = [code for code, _ in log.create_acls(*(ORDERS._replace(operation=n) for n in (3, 4, 5)))]
    assert codes == [0, 0, ErrorCode.POLICY_VIOLATION]
    log.delete_acls(EVERYTHING._replace(operation=3))
    assert log.create_acls(ORDERS._replace(operation=5)) == [(0, None)]


@pytest.mark.parametrize("bound", ["ENTRIES_PER_REQUEST_MAX", "ENTRIES_MAX"])
def test_entries_have_bounds(log: Log, monkeypatch: pytest.MonkeyPatch, bound: str) -> None:
    monkeypatch.setattr(acl_rules, bound, 2)
    codes = [code for code, _ in log.create_acls(*(ORDERS._replace(operation=n) for n in (3, 4, 5)))]
    assert codes == [0, 0, ErrorCode.POLICY_VIOLATION]


def test_a_request_that_would_delete_too_many_entries_deletes_none(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acl_rules, "ENTRIES_PER_REQUEST_MAX", 2)
    log.create_acls(ORDERS, ORDERS._replace(operation=4))
    log.create_acls(ORDERS._replace(operation=5))
    assert log.delete_acls(EVERYTHING).results[0].error == ErrorCode.POLICY_VIOLATION
    assert len(log.state.acls) == 3


def test_a_log_that_contradicts_itself_is_damaged() -> None:
    record = AccessControlEntryRecord(bytes(16), 2, "orders", 3, "User:ann", "*", 3, 3)
    state = MetadataState()
    state.apply_all([record])
    with pytest.raises(InconsistentMetadata, match="is there already"):
        state.draft().apply_all([record])
    with pytest.raises(InconsistentMetadata, match="does not exist"):
        state.apply_all([RemoveAccessControlEntryRecord(b"x" * 16)])


def test_a_draft_leaves_the_state_alone(log: Log) -> None:
    log.create_acls(ORDERS)
    log.state.draft().apply_all([RemoveAccessControlEntryRecord(log.state.acls[Acl(*ORDERS)])])
    assert len(log.state.acls) == len(log.state.acls_by_id) == 1


def test_filters_with_open_fields_have_a_bound(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acl_rules, "COMPARED_MAX", 2)
    bob = ORDERS._replace(principal="User:bob")
    log.create_acls(ORDERS, bob)
    open_ones = [EVERYTHING._replace(principal=name) for name in ("User:ann", "User:bob")]
    answer = log.delete_acls(*open_ones, AclFilterImage(*bob), AclFilterImage(*bob._replace(operation=4)))
    assert [one.error for one in answer.results] == [0, ErrorCode.POLICY_VIOLATION, 0, 0]
    assert [one.acls for one in answer.results] == [[ORDERS], [], [bob], []]
    assert log.state.acls == {}
