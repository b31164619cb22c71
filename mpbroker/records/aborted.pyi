from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from typing_extensions import Buffer

from mpbroker.records.iterate import Batch

NOT_ENDED: Final[int]

class AbortedRange(NamedTuple):
    producer_id: int
    first_offset: int
    last_offset: int

class AbortedRanges:
    def __new__(
        cls, found: Iterable[tuple[int, int, int]] = (), *, complete: bool = False
    ) -> AbortedRanges: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[AbortedRange]: ...
    @property
    def unmarked(self) -> frozenset[int]: ...
    def is_aborted(self, batch: Batch) -> bool: ...

def from_fetch(records: Buffer, aborted: Iterable[tuple[int, int]]) -> AbortedRanges: ...
