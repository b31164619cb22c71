"""An acceptor's count of all connections, kept right by the ledgers of the processors.

A ledger is a table in shared memory with a row for each connection of a processor, by ticket (the number of
its hand-over). The acceptor counts its own hand-overs, and reads in the ledgers which connections were closed
and which the other acceptor has handed over. It counts all rows again when it starts, when the supervisor has
cleared the rows of a dead processor, and when a new processor has taken the connections that waited for it.
"""

from __future__ import annotations

from mpbroker.ipc.connections import Ledger
from mpbroker.network.acceptor.connection_quotas import ConnectionQuotas

Known = tuple[int, bytes]


class _Book:
    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.position = 0
        self.cleared = 0
        self.known: dict[int, Known] = {}
        self.recount_at: int | None = None  # count again when this ticket has been taken


class ConnectionCounts:
    """Keeps the connection counts in `quotas`. `ledgers` has the ledgers of all processors by role."""

    def __init__(self, ledgers: dict[int, Ledger], quotas: ConnectionQuotas) -> None:
        self.quotas = quotas
        self._books = {role: _Book(ledger) for role, ledger in ledgers.items()}
        for book in self._books.values():
            self._count_again(book)

    def handed(self, role: int, ticket: int, listener: int, address: bytes) -> None:
        """Note a connection that was sent to a processor with this ticket. `quotas` already counts it."""
        self._books[role].known[ticket] = (listener, address)

    def catch_up(self) -> None:
        """Count the connections that the ledgers report as opened or closed since the last call."""
        for book in self._books.values():
            taken = book.recount_at is not None and book.ledger.taken >= book.recount_at
            news = book.ledger.news(book.position)
            if taken or news is None or book.ledger.cleared != book.cleared:
                self._count_again(book)
                continue
            book.position, entries = news
            for ticket, opened in entries:
                if opened is None:
                    self._forget(book, ticket)
                elif ticket not in book.known:
                    self._learn(book, ticket, opened)

    def recount_when_taken(self, role: int, ticket: int) -> None:
        """Make `catch_up` count a processor's rows again once the processor has taken this ticket."""
        self._books[role].recount_at = ticket

    def by_processor(self, role: int) -> dict[int, Known]:
        return self._books[role].known

    def _count_again(self, book: _Book) -> None:
        if book.recount_at is not None and book.ledger.taken >= book.recount_at:
            book.recount_at = None
        book.cleared = book.ledger.cleared
        book.position, _, found = book.ledger.snapshot()
        for ticket in book.known.keys() - found.keys():
            self._forget(book, ticket)
        for ticket in found.keys() - book.known.keys():
            self._learn(book, ticket, found[ticket])

    def _learn(self, book: _Book, ticket: int, known: Known) -> None:
        book.known[ticket] = known
        self.quotas.add(*known)

    def _forget(self, book: _Book, ticket: int) -> None:
        known = book.known.pop(ticket, None)
        if known is not None:
            self.quotas.remove(*known)
