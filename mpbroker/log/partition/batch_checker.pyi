from typing import NamedTuple

from mpbroker.log.partition.state import PartitionState
from mpbroker.storage.producer_state import Producers

class Checked(NamedTuple):
    valid_bytes: int
    next_offset: int
    reason: str
    aborted: list[tuple[int, int, int, int]]
    epochs: list[tuple[int, int]]

def check_batches(
    fd: int,
    position: int,
    end: int,
    next_offset: int,
    state: PartitionState,
    apply_index: bool,
    producers_from: int,
    most_bytes: int,
) -> Checked: ...
def recall_batches(fd: int, position: int, end: int, producers: Producers) -> None: ...
def good_batch_behind(fd: int, position: int, end: int, next_offset: int, segment_base: int) -> bool: ...
