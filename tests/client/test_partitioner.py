"""Equal keys meet in the partition that Kafka's Java client picks."""

import pytest

from mpbroker.client.partitioner import partition_for


@pytest.mark.parametrize(
    ("key", "expected"),
    [(b"21", -973932308), (b"foobar", -790332482), (b"abc", 479470107)],
)
def test_a_partition_is_kafkas(key: bytes, expected: int) -> None:
    """Numbers from Kafka's own UtilsTest."""
    assert partition_for(key, 7) == (expected & 0x7FFFFFFF) % 7
