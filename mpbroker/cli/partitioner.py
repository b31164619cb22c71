"""Which partition a record goes to: the one Kafka's Java client picks, so that equal keys meet.

`org.apache.kafka.common.utils.Utils.murmur2` over the key's bytes, made positive, modulo the partitions.
"""

_SEED = 0x9747B28C
_MULTIPLIER = 0x5BD1E995
_WORD = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """Kafka's variant of MurmurHash2, as an unsigned number of 32 bits."""
    length = len(data)
    state = (_SEED ^ length) & _WORD
    whole = length & ~3
    for position in range(0, whole, 4):
        word = int.from_bytes(data[position : position + 4], "little") * _MULTIPLIER & _WORD
        word = (word ^ word >> 24) * _MULTIPLIER & _WORD
        state = (state * _MULTIPLIER & _WORD) ^ word
    if tail := data[whole:]:
        state = (state ^ int.from_bytes(tail, "little")) * _MULTIPLIER & _WORD
    state = (state ^ state >> 13) * _MULTIPLIER & _WORD
    return state ^ state >> 15


def partition_for(key: bytes, partitions: int) -> int:
    """The partition of all records with this key."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions
