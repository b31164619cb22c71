"""Numbers by partition: the same as a dict says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpbroker.storage.checkpoints import PartitionMap

KEYS = st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 5) | st.sampled_from([70, 90, 200, 1 << 31]))
STEPS = st.lists(st.tuples(st.booleans(), KEYS, st.integers(0, (1 << 63) - 1)), max_size=60)


@given(STEPS)
def test_it_is_what_a_dict_would_be(steps: list[tuple[bool, tuple[str, int], int]]) -> None:
    made: PartitionMap[str] = PartitionMap()
    expected: dict[tuple[str, int], int] = {}
    for puts, key, number in steps:
        before = made.copy()
        was = dict(expected)
        if puts:
            made[key] = expected[key] = number
        else:
            assert made.pop(key, None) == expected.pop(key, None)
        assert before == was
        assert (made == before) == (was == expected)
        assert (len(made), dict(made)) == (len(expected), expected)
        assert made.get(key) == expected.get(key)
        for topic in ("a", "b"):
            assert sorted(made.of(topic)) == sorted(n for other, n in expected if other == topic)
    assert PartitionMap(expected) == made


def test_what_is_missing_is_no_number() -> None:
    made = PartitionMap({("t", 3): 0})
    for absent in (("t", 0), ("t", 4), ("u", 0)):
        assert absent not in made
        with pytest.raises(KeyError):
            del made[absent]
    for key, number in ((("t", 0), -1), (("t", -1), 0), (("t", 0), 1 << 63)):
        with pytest.raises(ValueError, match=r"has the number"):
            made[key] = number
    assert ("t", -1) not in made
    assert dict(made) == {("t", 3): 0}
