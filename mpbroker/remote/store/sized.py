"""The pieces of an object on their way into a store, counted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator


class SizedPieces:
    """Iterates over the pieces of an object, and checks the sum of their sizes.

    `error` is the exception of the pieces, or of a wrong sum: then the source has failed, and not the store.
    """

    def __init__(self, name: str, pieces: Iterable[bytes], size: int) -> None:
        self._name = name
        self._pieces = pieces
        self._size = size
        self.error: Exception | None = None

    def __iter__(self) -> Iterator[bytes]:
        found = 0
        try:
            for piece in self._pieces:
                found += len(piece)
                yield piece
            if found != self._size:
                raise ValueError(f"{self._name}: the pieces have {found} bytes, {self._size} were announced")
        except Exception as error:
            self.error = error
            raise
