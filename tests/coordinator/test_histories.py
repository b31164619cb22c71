"""What coordinators load from histories of their topics: offsets of transactions, compaction and restarts."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import starmap

import pytest

from mpbroker.coordinator.groups.records import OffsetKey, OffsetValue
from mpbroker.coordinator.groups.records import decode as decode_offset
from mpbroker.coordinator.groups.records import encode as encode_offset
from mpbroker.coordinator.transactions.records import TransactionState, TransactionValue
from mpbroker.coordinator.transactions.records import decode as decode_state
from mpbroker.coordinator.transactions.records import encode as encode_state
from mpbroker.ipc.table import PAYLOAD_BYTES, unpack_partition
from mpbroker.records.iterate import iterate_batches
from tests.support.forms import pick, rounds
from tests.support.group_rig import GroupRig
from tests.support.partition_model import Pair, PartitionModel
from tests.support.partition_walk import KEYS, Content, Disagreement, Walker, walker
from tests.support.transaction_rig import TransactionRig

HISTORIES = pick("histories of each topic", short=rounds(40), long=1000)
PARTS = 2
NEVER = {"delete", "retain"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Walker]:
    with walker(tmp_path_factory.mktemp("histories")) as found:
        yield found


class CommittedOffsets(Content):
    """Keys are partitions of topic t, values the offsets that group g has committed there."""

    has_transactional_tombstones = False

    def encode(self, key: int, value: int | None) -> Pair:
        offset = None if value is None else OffsetValue(value, 0, "", 0)
        return encode_offset((OffsetKey("g", "t", key), offset))

    def compare(self, log: bytes, model: PartitionModel) -> None:
        rig = GroupRig()
        rig.log[rig.coordinator.partitions.partition_for("g")] = log
        rig = rig.restarted()
        latest = dict(filter(None, starmap(decode_offset, model.latest().items())))
        wanted = {("t", key.partition): value.offset for key, value in latest.items()}
        if (found := rig.fetched(topics=None)) != wanted:
            raise Disagreement(f"the group coordinator loads {found}, and by the model {wanted}")
        keys = [OffsetKey("g", "t", key) for key in range(KEYS)]
        pending = {encode_offset((key, None))[0] for key in keys if rig.coordinator.offsets.is_pending(key)}
        if pending != model.pending():
            raise Disagreement(
                f"pending for the group coordinator: {pending}; for the model: {model.pending()}"
            )


class TransactionStates(Content):
    """Keys are transactional ids, values their producer ids."""

    def encode(self, key: int, value: int | None) -> Pair:
        state = None
        if value is not None:
            state = TransactionValue(value, 0, 1000, TransactionState.COMPLETE_COMMIT, frozenset(), 0)
        return encode_state((f"x{key}", state))

    def compare(self, log: bytes, model: PartitionModel) -> None:
        rig = TransactionRig()
        contents = rig.coordinator.contents
        contents.begin()
        for batch in iterate_batches(log):
            contents.read(0, batch)
        contents.end(unpack_partition(bytes(PAYLOAD_BYTES)))
        wanted = dict(filter(None, starmap(decode_state, model.latest().items())))
        found = {one.transactional_id: one.value for one in rig.coordinator.state}
        if found != wanted:
            raise Disagreement(f"the transaction coordinator loads {found}, and by the model {wanted}")


@pytest.mark.parametrize("part", range(PARTS))
def test_committed_offsets(made: Walker, part: int) -> None:
    made.check(range(part, HISTORIES, PARTS), CommittedOffsets(), policies=["compact"], without=NEVER)


@pytest.mark.parametrize("part", range(PARTS))
def test_states_of_transactions(made: Walker, part: int) -> None:
    made.check(
        range(part, HISTORIES, PARTS),
        TransactionStates(),
        policies=["compact"],
        producers=[0],
        without=NEVER | {"commit", "abort"},
    )
