"""What an alteration of quotas comes to: records for what changes, an error for each entity that is refused.

One entity's changes happen together or not at all. Kafka: ClientQuotaControlManager.alterClientQuotas.
"""

from __future__ import annotations

from collections import Counter

from mpbroker.ipc.calls import AlteredQuotas, AlterQuotas, QuotaAlteration
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import ClientQuotaRecord
from mpbroker.quotas.entities import Entity, InvalidQuota, QuotaTable, check_quota, entity_of


def entity_in(record: ClientQuotaRecord) -> Entity:
    """Whom the record is about."""
    return tuple(sorted(((e.entity_type, e.entity_name) for e in record.entity), key=lambda pair: pair[0]))


def alter(quotas: QuotaTable, call: AlterQuotas) -> tuple[AlteredQuotas, list[ClientQuotaRecord]]:
    """The answer, and the records that make it true; changes nothing."""
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
        answer.results.append((ErrorCode.NONE, None))
        if not call.validate_only:
            records += changes
    return answer, records


def _changes(quotas: QuotaTable, alteration: QuotaAlteration) -> list[ClientQuotaRecord]:
    """Raises InvalidQuota."""
    entity = entity_of(alteration.entity)
    current = quotas.of(entity)
    records = []
    for key, value in alteration.changes.items():
        if value is not None:
            check_quota(entity, key, value)
        if current.get(key) != value:
            named = [ClientQuotaRecord.EntityData(kind, name) for kind, name in entity]
            record = ClientQuotaRecord(named, key, 0.0 if value is None else value, value is None)
            records.append(record)
    return records
