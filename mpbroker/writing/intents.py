"""Describes a sink's decisions: which transactions make up a batch. Sans-I/O."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from enum import Enum, StrEnum

from mpbroker.client.transactions import ProducerId


class SinkError(RuntimeError):
    """A batch cannot be committed exactly once. The text says why, and what to do."""


class Outcome(Enum):
    """The outcome of an attempt to commit a transaction."""

    COMMITTED = 1
    ABORTED = 2
    UNKNOWN = 3


class State(StrEnum):
    """The state of a batch."""

    DECIDED = "decided"
    """The transactions must be committed, by this driver or a later one; some may be committed already."""
    COMMITTED = "committed"
    """Every transaction is committed."""
    WITHDRAWN = "withdrawn"
    """Every transaction was aborted before any was committed: the batch is to be written again."""


@dataclass(frozen=True)
class Prepared:
    """An open transaction whose records are flushed, with all that another process needs to end it."""

    transactional_id: str
    producer: ProducerId


@dataclass(frozen=True)
class Batch:
    """A micro-batch of a query, or a batch job. `query`: the query's id, or the job's name or id."""

    query: str
    number: int

    @property
    def is_job(self) -> bool:
        return self.query.startswith(JOB)


JOB = "job-"


@dataclass(frozen=True)
class Intent:
    """A sink's latest decision to commit a batch: the batch, its state and its transactions."""

    batch: Batch
    state: State
    transactions: tuple[Prepared, ...] = ()

    def now(self, state: State) -> Intent:
        """Return the intent in a later state, without its transactions, which all have ended."""
        return replace(self, state=state, transactions=())

    def covers(self, batch: Batch) -> bool:
        """Return whether `batch` is older than this intent's batch, or is that batch and not withdrawn.

        Such a batch must not be written again. Raises SinkError for a batch of another query.
        """
        if self.batch.query == batch.query:
            settled = self.state is not State.WITHDRAWN or self.batch.number > batch.number
            return settled and self.batch.number >= batch.number
        if self.batch.is_job and batch.is_job:
            return False
        raise SinkError(
            f"this sinkId belongs to query {self.batch.query}, whose batch {self.batch.number} is "
            f"{self.state}; this is query {batch.query}. A sinkId is for one query and its checkpoint: give "
            "this one a sinkId of its own, or start it with the checkpoint of the other"
        )

    def to_json(self) -> bytes:
        transactions = [[one.transactional_id, *one.producer] for one in self.transactions]
        content = {
            "version": 1,
            "query": self.batch.query,
            "batch": self.batch.number,
            "state": self.state,
            "transactions": transactions,
        }
        return json.dumps(content, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, text: bytes) -> Intent:
        """Parse the text of `to_json`. Raises SinkError for any other text, including a later version's."""
        try:
            content = json.loads(text)
            version = content["version"]
            if version == 1:
                transactions = tuple(
                    Prepared(name, ProducerId(number, epoch))
                    for name, number, epoch in content["transactions"]
                )
                return cls(Batch(content["query"], content["batch"]), State(content["state"]), transactions)
        except (ValueError, KeyError, TypeError) as error:
            raise SinkError(
                f"the sink's record cannot be read, no sink wrote it: {text[:100]!r}. "
                "Give the query another sinkId: its next batch may be in the topic already"
            ) from error
        raise SinkError(
            f"the sink's record has version {version}, this mpbroker knows version 1: "
            "a newer mpbroker has written it, use that one"
        )
