from collections.abc import Callable

from mpbroker.config.topic_config import TopicConfig
from mpbroker.log.recovery.log_loader import Known

def opened_at_rest(
    directory: str,
    metadata: bytes,
    config: TopicConfig,
    known: Known,
    device: int,
    now_ms: int,
    count: Callable[[int], None],
) -> tuple[tuple[int, ...], bytes, int, int, int, list[int], list[tuple[int, int]]] | None: ...
