"""Puts together what a handler's APIs see of the broker (`broker.Broker`)."""

from __future__ import annotations

import os
from collections.abc import Mapping

from mpbroker.config.broker import BrokerConfig
from mpbroker.handlers.answers import Answers
from mpbroker.handlers.apis import all_apis
from mpbroker.handlers.broker import Broker
from mpbroker.handlers.calls import SUCCESSOR_MS, Caller, CallOutbox, LogOutbox
from mpbroker.handlers.cold_reads import ColdReads
from mpbroker.handlers.fetch_sessions import FetchSessionCache
from mpbroker.handlers.fetches import Fetches
from mpbroker.handlers.forwarding import Forwarding
from mpbroker.handlers.holds import Holds
from mpbroker.handlers.hot_path.turn import Turn
from mpbroker.handlers.jobs import Jobs
from mpbroker.handlers.metadata import Metadata
from mpbroker.handlers.outbox import Outbox
from mpbroker.handlers.readers import Readers
from mpbroker.handlers.throttling import Throttling
from mpbroker.handlers.transactions import Transactions
from mpbroker.handlers.waiting import Waiting
from mpbroker.ipc.log_levels import LogLevels
from mpbroker.ipc.process import ProcessContext
from mpbroker.ipc.producer_ids import ProducerIds
from mpbroker.ipc.topology import COORDINATOR, log_worker
from shm.arena import Arena
from shm.clock import monotonic_ms
from shm.counters import CounterPage


def make_broker(
    context: ProcessContext, number: int, arena: Arena, turn: Turn, outboxes: Mapping[int, Outbox]
) -> Broker:
    """`number`: of the handler; `arena`: its own; `outboxes`: by process. No log worker is up yet for it."""
    config, memory = context.config, context.memory
    workers = range(memory.sizes.log_workers)
    coordinator = _caller(context, arena, COORDINATOR, outboxes[COORDINATOR], context.counters, SUCCESSOR_MS)
    coordinator.peer_is_up = context.is_alive(COORDINATOR)
    table, marks = memory.table(), memory.marks()
    # What a predecessor marked is nobody's wait any more.
    marks.clear_waiter(number)
    metadata = Metadata(config, turn.topics)
    waiting = _make_waiting(context, number)
    jobs = Jobs(context.index, arena, turn.push_job, waiting, len(workers))
    return Broker(
        config=config,
        metadata=metadata,
        table=table,
        answers=Answers(context.index, arena, lambda p: outboxes[p], waiting, context.whose),
        coordinator=coordinator,
        log=jobs,
        log_calls=[_log_caller(context, arena, worker, turn) for worker in workers],
        failed_dirs=memory.failed_dirs,
        waiting=waiting,
        apis=all_apis(),
        fetches=Fetches(
            table, marks, number, context.counters, config.fetch_purgatory_purge_interval_requests
        ),
        fetch_sessions=FetchSessionCache(
            session_slots(config),
            number,
            turn.fetch_sessions,
            context.counters,
            monotonic_ms,
            memory.sizes.partition_slots,
        ),
        forwarding=Forwarding(coordinator),
        readers=Readers(config.log_dirs),
        # A ring may be missed by who is about to sleep; this is read by the sleep itself.
        cold_reads=ColdReads(lambda: os.eventfd_write(context.bell.fd, 1)),
        damaged=memory.words("damaged"),
        places=turn.places,
        producer_ids=ProducerIds(coordinator.call),
        transactions=Transactions(coordinator, Holds(coordinator, jobs.are_up)),
        counters=context.counters,
        meters=turn.meters,
        tells_all=lambda: turn.tells_all,
        session=context.session,
        listener=context.listener,
        whose=context.whose,
        throttling=Throttling(
            config, metadata, turn.clients, turn.meters, memory.quota_secret, context.session
        ),
        log_levels=LogLevels(memory),
    )


def session_slots(config: BrokerConfig) -> int:
    """A handler's share of the fetch sessions."""
    return -(-config.max_incremental_fetch_session_cache_slots // config.num_io_threads)


def _log_caller(context: ProcessContext, arena: Arena, worker: int, turn: Turn) -> Caller:
    return _caller(context, arena, log_worker(worker), LogOutbox(lambda slot: turn.push_job(slot, worker)))


def _caller(
    context: ProcessContext,
    arena: Arena,
    peer: int,
    outbox: CallOutbox,
    counters: CounterPage | None = None,
    successor_ms: int = 0,
) -> Caller:
    theirs = context.memory.arena(peer)
    return Caller(context.index, peer, arena, theirs, outbox, counters, successor_ms)


def _make_waiting(context: ProcessContext, number: int) -> Waiting:
    word = context.memory.words("replies_out")
    word.store(number, 0)
    return Waiting(lambda waits: word.store(number, waits), monotonic_ms, context.whose)
