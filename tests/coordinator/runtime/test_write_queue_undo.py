"""Appends that can be undone: memory is what the log accepted, whatever it refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from mpbroker.coordinator.runtime.write_queue import NOBODY, Producer, WriteQueue
from mpbroker.protocol.errors import ErrorCode
from mpbroker.records.iterate import iterate_batches
from tests.support.forms import rounds

NONE = ErrorCode.NONE
REFUSED = ErrorCode.KAFKA_STORAGE_ERROR
# In these tests, a batch has room for a few small values and for no large one.
MOST_BYTES = 400
TOO_LARGE = 1_000
# The first two have one partition.
NAMES = ("a", "b", "c")


@dataclass(eq=False)
class Owner:
    """Values by name and key. Each write has a number, which is its value.

    With `undo`, a value is set when it is written; without, when it is durable.
    """

    values: dict[tuple[str, str], int] = field(default_factory=dict)
    log: dict[tuple[str, str], int] = field(default_factory=dict)
    ended: list[tuple[int, ErrorCode]] = field(default_factory=list)
    count: int = 0

    def __post_init__(self) -> None:
        self.queue = WriteQueue[tuple[str, str, int, int]](
            "thing",
            lambda entry: (f"{entry[0]}{entry[1]}".encode(), f"{entry[2]}".zfill(entry[3]).encode()),
            lambda name: 0 if name in "abd" else 1,
            lambda: 77,
            lambda: MOST_BYTES,
            lambda _name, _waiter: None,
        )

    def write(
        self, name: str, keys: list[str], *, undoable: bool, size: int, in_transaction: bool, then_again: bool
    ) -> int:
        self.count += 1
        number = self.count
        entries = [(name, key, number, size) for key in keys]
        before = {(name, key): self.values.get((name, key)) for key in keys}

        def apply() -> None:
            self.values.update(dict.fromkeys(before, number))

        def undo() -> None:
            for key, value in before.items():
                assert self.values[key] == number, "undone in another order than it was done"
                if value is None:
                    del self.values[key]
                else:
                    self.values[key] = value

        def then(error: ErrorCode) -> None:
            self.ended.append((number, error))
            if not error and not undoable:
                apply()
            if then_again:
                self.write(
                    name, keys, undoable=undoable, size=1, in_transaction=in_transaction, then_again=False
                )

        if undoable:
            apply()
        producer = Producer(7, 0) if in_transaction else NOBODY
        self.queue.append(name, entries, then, producer=producer, undo=undo if undoable else None)
        return number

    def round(self, is_refused: Callable[[int], bool]) -> None:
        batches = self.queue.next_round()
        errors = [REFUSED if is_refused(place) else NONE for place in range(len(batches))]
        for batch, error in zip(batches, errors, strict=True):
            assert len(batch.batch) <= MOST_BYTES
            if not error:
                self._log(batch.batch)
        if batches:
            self.queue.finish(errors)

    def _log(self, written: bytes) -> None:
        for batch in iterate_batches(written):
            for record in batch.records():
                name, key = (record.key or b"").decode()
                self.log[name, key] = int(record.value or b"")


writes = st.builds(
    dict,
    name=st.sampled_from(NAMES),
    keys=st.lists(st.sampled_from("xyz"), unique=True),
    undoable=st.sampled_from([True, True, False]),
    size=st.sampled_from([1, 1, 100, TOO_LARGE]),
    in_transaction=st.booleans(),
    then_again=st.booleans(),
)
steps = st.lists(st.one_of(writes, writes, st.sets(st.integers(0, 4))), max_size=40)


@settings(max_examples=rounds(1_000), deadline=None)
@given(steps)
def test_memory_is_what_the_log_accepted(done: list[dict[str, object] | set[int]]) -> None:
    owner = Owner()
    undoable: dict[int, tuple[str, bool]] = {}
    for step in done:
        if isinstance(step, set):
            owner.round(step.__contains__)
            continue
        # A key is written with undo always or never, as the records of a consumer group and offsets are.
        keys = [f"{key.upper() if step['undoable'] else key}" for key in step["keys"]]  # type: ignore[attr-defined]
        number = owner.write(**{**step, "keys": keys})  # type: ignore[arg-type]
        undoable[number] = str(step["name"]), bool(step["undoable"])
    while not owner.queue.is_idle:
        owner.round(lambda _place: False)
    assert owner.values == owner.log
    numbers = [number for number, _ in owner.ended]
    assert sorted(numbers) == list(range(1, owner.count + 1)), "each write ends once"
    mine = [(number, *undoable[number]) for number in numbers if number in undoable]
    for some in ([one for one in mine if one[1] == name] for name in NAMES):
        assert some == sorted(some), "writes of a name end in order"


def test_a_refused_change_takes_back_those_that_build_on_it() -> None:
    """Writes of these names are refused, too. Those of another name and of another partition are not."""
    owner = Owner()
    for name in ("a", "b", "c"):
        owner.write(name, ["X"], undoable=True, size=1, in_transaction=False, then_again=False)
    batches = owner.queue.next_round()
    owner.write("a", ["X", "Y"], undoable=True, size=1, in_transaction=False, then_again=False)
    for name in ("a", "b", "a"):
        owner.write(name, ["x"], undoable=False, size=1, in_transaction=False, then_again=False)
    owner.write("d", ["x"], undoable=False, size=1, in_transaction=False, then_again=False)
    assert [batch.partition for batch in batches] == [0, 1]
    owner.queue.finish([REFUSED, NONE])
    assert owner.values == {("c", "X"): 3}
    refused = [1, 2, 4, 5, 6, 7]
    assert owner.ended == [*((number, REFUSED) for number in refused), (3, NONE)]
    owner.round(lambda _place: False)
    assert owner.values == {("c", "X"): 3, ("d", "x"): 8}


def test_a_change_that_is_too_large_takes_back_later_ones_of_its_name_only() -> None:
    owner = Owner()
    owner.write("a", ["X"], undoable=True, size=1, in_transaction=False, then_again=False)
    owner.write("b", ["X"], undoable=True, size=TOO_LARGE, in_transaction=False, then_again=False)
    for name in ("a", "b"):
        owner.write(name, ["X"], undoable=True, size=1, in_transaction=False, then_again=False)
    owner.round(lambda _place: False)
    assert owner.values == {("a", "X"): 3, ("b", "X"): 4}
    owner.round(lambda _place: False)
    large = ErrorCode.MESSAGE_TOO_LARGE
    assert owner.ended == [(1, NONE), (2, large), (4, large), (3, NONE)]
    assert owner.values == {("a", "X"): 3}
    assert owner.queue.is_idle


def test_several_appends_have_one_batch_if_it_is_not_too_large() -> None:
    owner = Owner()
    for _ in range(5):
        owner.write("a", ["x"], undoable=False, size=100, in_transaction=False, then_again=False)
    batches = owner.queue.next_round()
    assert [batch.record_count for batch in batches] == [2, 2, 1]
    assert max(len(batch.batch) for batch in batches) <= MOST_BYTES
