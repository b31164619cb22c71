"""Equal keys meet in the partition that Kafka's Java client picks."""

import pytest

from mpbroker.client.topics import partition_for
from mpbroker.records.encode import murmur2


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_a_partition_is_kafkas(key: bytes, expected: int) -> None:
    """Numbers from Kafka's own UtilsTest."""
    assert murmur2(key) == expected & 0xFFFFFFFF
    assert partition_for(key, 7) == (expected & 0x7FFFFFFF) % 7
