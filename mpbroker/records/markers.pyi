from typing_extensions import Buffer

ABORT: int
COMMIT: int

def marker_of(batch: Buffer) -> tuple[int, int] | None: ...
