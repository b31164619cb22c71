from enum import IntEnum
from pathlib import Path

from shm.region import Block, Region

TOPIC_NAME_BYTES_MAX: int
OTHER_ERROR: int
OTHER_VERSION: int
CLIENTS_MAX: int
QUOTA_ROWS: int
QUOTA_IDLE_MS: int

class ApiPage(IntEnum):
    FETCH_FOLLOWER = 128
    ADD_PARTITIONS_TO_TXN_VERIFICATION = 129

class ApiHistogram(IntEnum):
    REQUEST_QUEUE_NS = 0
    LOCAL_NS = 1
    REMOTE_NS = 2
    THROTTLE_NS = 3
    RESPONSE_QUEUE_NS = 4
    RESPONSE_SEND_NS = 5
    TOTAL_NS = 6
    REQUEST_BYTES = 7
    CONVERSION_NS = 8
    TEMPORARY_BYTES = 9
    API_HISTOGRAMS = 10

class ClientKind(IntEnum):
    CLIENT_SOFTWARE = 0
    CLIENT_CIPHER = 1
    CLIENT_KINDS = 2

class QuotaKind(IntEnum):
    QUOTA_PRODUCE = 0
    QUOTA_FETCH = 1
    QUOTA_REQUEST = 2
    QUOTA_MUTATION = 3
    QUOTA_KINDS = 4

class QuotaWord(IntEnum):
    QUOTA_KEY = 0
    QUOTA_OF = 1
    QUOTA_USED = 2
    QUOTA_EXEMPT = 3
    QUOTA_PAUSES = 4
    QUOTA_PAUSES_MS = 5
    QUOTA_UNMEASURED = 6
    QUOTA_LAST_MS = 7
    QUOTA_TOKENS_MILLI = 8
    QUOTA_RATE_MILLI = 9
    QUOTA_BURST_MILLI = 10
    QUOTA_WORDS = 11

class TopicMeter(IntEnum):
    TOPIC_GENERATION = 0
    MESSAGES_IN = 1
    BYTES_IN = 2
    BYTES_OUT = 3
    BYTES_REJECTED = 4
    FAILED_PRODUCE = 5
    FAILED_FETCH = 6
    TOTAL_PRODUCE = 7
    TOTAL_FETCH = 8
    PRODUCE_CONVERSIONS = 9
    FETCH_CONVERSIONS = 10
    NO_KEY_COMPACTED = 11
    INVALID_MAGIC = 12
    INVALID_CRC = 13
    INVALID_OFFSET_OR_SEQUENCE = 14
    TOPIC_METERS = 15

def blocks(processes: int, slots: int) -> list[Block]: ...

class Meters:
    process: int
    def __init__(self, public: Region, path: Path, process: int, slots: int) -> None: ...
    @property
    def lost(self) -> int: ...
    def request(self, api: int, version: int, histogram: int, value: int) -> None: ...
    def error(self, api: int, code: int, times: int = 1) -> None: ...
    def topic(self, slot: int, generation: int, meter: int, amount: int = 1) -> None: ...
    def name_topic(self, slot: int, generation: int, topic_id: bytes, name: str) -> None: ...
    def forget_topic(self, topic_id: bytes) -> None: ...
    def client(self, kind: int, name: bytes, version: bytes) -> int: ...
    def client_gone(self, kind: int, client: int) -> None: ...
    def name_quota(self, kind: int, key: int, user: str, client_id: str, now_ms: int) -> bool: ...
    def quota_used(self, kind: int, key: int, value: int, now_ms: int) -> None: ...
    def quota_pause(self, kind: int, key: int, pause_ms: int) -> None: ...
    def quota_exempt(self, kind: int, value: int) -> None: ...
    def quota_tokens(self, key: int, tokens: float, rate: float, burst: float) -> None: ...

class Reader:
    def __init__(self, public: Region, slots: int) -> None: ...
    def lost(self, process: int) -> int: ...
    def apis(self, process: int) -> dict[int, tuple[dict[int, int], list[tuple[list[int], int, int]]]]: ...
    def errors(self, process: int) -> dict[int, dict[int, int]]: ...
    def topics(self, process: int) -> dict[tuple[int, int], list[int]]: ...
    def retired(self, process: int) -> list[int]: ...
    def names(self) -> dict[tuple[int, int], str]: ...
    def clients(self, process: int, kind: int) -> list[tuple[str, str, int, int]]: ...
    def quotas(self, process: int) -> tuple[list[list[int]], list[tuple[str, str, list[int]]]]: ...
