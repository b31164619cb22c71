"""Creations and deletions of access control entries.

Each entry has an id, which the record of its removal names. Creating an entry that exists succeeds and writes
no record. (Kafka: AclControlManager; KIP-801.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from msgspec.structs import astuple

from mpbroker.coordinator.metadata.image_sizes import NAME_BYTES_MAX, acl_bytes
from mpbroker.ipc.acls import AclImage
from mpbroker.ipc.calls import AlteredResources, CreateAcls, DeleteAcls, DeletedAcls, DeletedAclsOfFilter
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import AccessControlEntryRecord, RemoveAccessControlEntryRecord
from mpbroker.security.acls import Acl, AclFilter, BadAcl, check_new

ENTRIES_PER_REQUEST_MAX: Final = 10_000
"""Entries that one request may create or delete (Kafka: MAX_RECORDS_PER_USER_OP)."""
ENTRIES_MAX: Final = 100_000
"""The most entries in all. (Each change of metadata copies their table.)"""
COMPARED_MAX: Final = 1_000_000
"""The most comparisons of entries with a request's filters: half a second of the coordinator's work.

Filters that leave no field open need no comparisons.
"""

AclTable: TypeAlias = dict[Acl, bytes]
"""All entries with their ids."""


def acl_in(record: AccessControlEntryRecord) -> Acl:
    """Return the access control entry that a record has."""
    return Acl(*astuple(record)[1:])


def create(
    acls: AclTable, call: CreateAcls, room: int, new_id: Callable[[], bytes]
) -> tuple[AlteredResources, list[AccessControlEntryRecord]]:
    """Return a result per entry, and the records to write. `room`: the bytes left in the bulletin."""
    answer, records = AlteredResources([]), []
    made: set[Acl] = set()
    for image in call.acls:
        acl = Acl(*image)
        try:
            check_new(acl)
            _check_lengths(acl)
        except BadAcl as error:
            answer.results.append((ErrorCode.INVALID_REQUEST, str(error)))
            continue
        if acl not in acls and acl not in made:
            room -= acl_bytes(acl)
            is_full = room < 0 or len(acls) + len(made) >= ENTRIES_MAX
            if is_full or len(made) == ENTRIES_PER_REQUEST_MAX:
                text = "There are too many access control entries; remove some first"
                if not is_full:
                    text = f"A request may create {ENTRIES_PER_REQUEST_MAX} access control entries"
                answer.results.append((ErrorCode.POLICY_VIOLATION, text))
                continue
            made.add(acl)
            records.append(AccessControlEntryRecord(new_id(), *acl))
        answer.results.append((ErrorCode.NONE, None))
    return answer, records


def _check_lengths(acl: Acl) -> None:
    """Raise BadAcl if the entry's principal or host has more than NAME_BYTES_MAX bytes."""
    for what, text in (("principal", acl.principal), ("host", acl.host)):
        if len(text.encode()) > NAME_BYTES_MAX:
            raise BadAcl(f"The {what} of an access control entry may have at most {NAME_BYTES_MAX} bytes")


def _matching(acls: AclTable, asked: AclFilter) -> list[Acl]:
    if asked.is_exact:
        exact = Acl(*asked)  # type: ignore[arg-type]
        return [exact] if exact in acls else []
    return [acl for acl in acls if asked.matches(acl)]


def delete(acls: AclTable, call: DeleteAcls) -> tuple[DeletedAcls, list[RemoveAccessControlEntryRecord]]:
    """Return the answer, with one result per filter, and the records to write. Changes nothing."""
    answer = DeletedAcls([])
    removed: dict[bytes, None] = {}
    compared = 0
    for image in call.filters:
        asked = AclFilter(*image)
        try:
            asked.check()
        except BadAcl as error:
            answer.results.append(DeletedAclsOfFilter(ErrorCode.INVALID_REQUEST, str(error)))
            continue
        compared += 0 if asked.is_exact else len(acls)
        if compared > COMPARED_MAX and not asked.is_exact:
            text = "The filters match too many entries; send fewer filters at once"
            answer.results.append(DeletedAclsOfFilter(ErrorCode.POLICY_VIOLATION, text))
            continue
        found = _matching(acls, asked)
        if len(removed) + len(found) > ENTRIES_PER_REQUEST_MAX:
            text = f"Cannot remove more than {ENTRIES_PER_REQUEST_MAX} acls in a single delete operation."
            answer.results.append(DeletedAclsOfFilter(ErrorCode.POLICY_VIOLATION, text))
            continue
        removed.update(dict.fromkeys(acls[acl] for acl in found))
        answer.results.append(DeletedAclsOfFilter(acls=[AclImage(*acl) for acl in found]))
    return answer, [RemoveAccessControlEntryRecord(acl_id) for acl_id in removed]
