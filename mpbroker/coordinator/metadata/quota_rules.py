"""Alterations of quotas: a record for each change, an error for each refused entity.

The changes of one entity happen together or not at all. (Kafka: ClientQuotaControlManager.alterClientQuotas.)
"""

from __future__ import annotations

from collections import Counter

from mpbroker.coordinator.metadata.image_sizes import NAME_BYTES_MAX, quota_bytes
from mpbroker.ipc.calls import AlteredQuotas, AlterQuotas, QuotaAlteration
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import ClientQuotaRecord
from mpbroker.quotas.entities import Entity, InvalidQuota, QuotaTable, check_quota, entity_of


def entity_in(record: ClientQuotaRecord) -> Entity:
    """Return the entity of a record: (type, name) pairs sorted by type."""
    return tuple(sorted(((e.entity_type, e.entity_name) for e in record.entity), key=lambda pair: pair[0]))


def alter(quotas: QuotaTable, call: AlterQuotas, room: int) -> tuple[AlteredQuotas, list[ClientQuotaRecord]]:
    """Return the answer and the records to write. Changes nothing. `room`: bytes left in the bulletin."""
    times = Counter(tuple(sorted(a.entity, key=str)) for a in call.alterations)
    answer, records = AlteredQuotas([]), []
    for alteration in call.alterations:
        try:
            if times[tuple(sorted(alteration.entity, key=str))] > 1:
                raise InvalidQuota("The entity is given more than once")
            changes = _changes(quotas, alteration)
        except InvalidQuota as error:
            answer.results.append((ErrorCode.INVALID_REQUEST, str(error)))
            continue
        grown = _growth(quotas, changes)
        if grown > max(room, 0):
            text = "There are too many topics and quotas; remove some first"
            answer.results.append((ErrorCode.POLICY_VIOLATION, text))
            continue
        # A removal makes room for the next call only: another alteration here may be of the same entity.
        room -= max(grown, 0)
        answer.results.append((ErrorCode.NONE, None))
        if not call.validate_only:
            records += changes
    return answer, records


def _changes(quotas: QuotaTable, alteration: QuotaAlteration) -> list[ClientQuotaRecord]:
    """Return the records of one entity's alteration. Raises InvalidQuota."""
    entity = entity_of(alteration.entity)
    current = quotas.of(entity)
    records = []
    for key, value in alteration.changes.items():
        if value is not None:
            check_quota(entity, key, value)
            _check_names(entity)
        if current.get(key) != value:
            named = [ClientQuotaRecord.EntityData(kind, name) for kind, name in entity]
            record = ClientQuotaRecord(named, key, 0.0 if value is None else value, value is None)
            records.append(record)
    return records


def _check_names(entity: Entity) -> None:
    """Raise InvalidQuota if a name in the entity has more than NAME_BYTES_MAX bytes."""
    for kind, name in entity:
        if name is not None and len(name.encode()) > NAME_BYTES_MAX:
            raise InvalidQuota(f"The name of a {kind} may have at most {NAME_BYTES_MAX} bytes")


def _growth(quotas: QuotaTable, changes: list[ClientQuotaRecord]) -> int:
    """Return by how many bytes one entity's changes enlarge the bulletin; negative if it gets smaller."""
    if not changes:
        return 0
    entity = entity_in(changes[0])
    before = quotas.of(entity)
    removed = {change.key for change in changes if change.remove}
    after = {key: value for key, value in before.items() if key not in removed}
    after |= {change.key: change.value for change in changes if not change.remove}
    return quota_bytes(entity, after) - quota_bytes(entity, before)
