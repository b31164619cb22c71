"""Construction of a handler's `broker.Broker`, the view of the broker that its APIs have."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from mpbroker.config.broker import BrokerConfig
from mpbroker.handlers.apis import all_apis, apis_of
from mpbroker.handlers.broker import Broker
from mpbroker.handlers.calls.forwarding import Forwarding
from mpbroker.handlers.calls.patient_client import SUCCESSOR_MS, PatientClient
from mpbroker.handlers.fetch.disk_prefetch import DiskPrefetch
from mpbroker.handlers.fetch.fetch_sessions import FetchSessionCache
from mpbroker.handlers.fetch.parked_fetches import Fetches
from mpbroker.handlers.fetch.partition_readers import Readers, ReplicaReaders
from mpbroker.handlers.fetch.preferred_replicas import PreferredReplicas
from mpbroker.handlers.fetch.remote_files import RemoteFiles
from mpbroker.handlers.fetch.remote_windows import RemoteWindows
from mpbroker.handlers.hot_path.turn import HandlerTurn
from mpbroker.handlers.produce.marker_holds import MarkerHolds
from mpbroker.handlers.produce.produce_order import ProduceOrder
from mpbroker.handlers.produce.slow_appends import Jobs
from mpbroker.handlers.produce.transaction_checks import TransactionChecks
from mpbroker.handlers.requests.admission import Admission
from mpbroker.handlers.requests.authorization import Authorization
from mpbroker.handlers.requests.client_metrics import ClientMetricsManager
from mpbroker.handlers.requests.metadata import Metadata
from mpbroker.handlers.requests.parked_memory import ParkedMemory
from mpbroker.handlers.requests.response_backpressure import ResponseBackpressure
from mpbroker.handlers.requests.responses import Responses
from mpbroker.handlers.requests.throttling import Throttling
from mpbroker.ipc.append_job import AppendJobs
from mpbroker.ipc.client_metrics import Push
from mpbroker.ipc.lending import Lender
from mpbroker.ipc.log_levels import LogLevels
from mpbroker.ipc.mirror import read_mirror
from mpbroker.ipc.process import ProcessContext
from mpbroker.ipc.producer_ids import ProducerIds
from mpbroker.ipc.rings import Outbox
from mpbroker.ipc.rpc import RpcClient
from mpbroker.ipc.slots import Request
from mpbroker.ipc.topology import COORDINATOR, EXPORTER, TIER, log_worker
from mpbroker.protocol.api_keys import FIRST_FLEXIBLE, ApiKey
from mpbroker.protocol.features import is_consumer_protocol_enabled
from mpbroker.security.audit_log import audit_of
from shm.arena import Arena
from shm.clock import monotonic_ms
from shm.table import SlotTable


def make_broker(
    context: ProcessContext,
    number: int,
    arena: Arena,
    turn: HandlerTurn,
    outboxes: Mapping[int, Outbox],
    produces: ProduceOrder,
) -> Broker:
    """Build the broker of handler `number`.

    `arena` is the handler's own, `outboxes` has the rings to other processes by their index. `produces` is
    notified of produces that are passed on to their log workers, and of produces that close their
    connections. The caller then tells the broker which log workers are up.
    """
    config, memory = context.config, context.memory
    workers = range(memory.sizes.log_workers)
    coordinator = _coordinator(context, arena, outboxes[COORDINATOR], turn)
    table = memory.table()
    metadata = Metadata(config, turn.topics)
    waiting = _make_waiting(context, number)
    appends = AppendJobs(Lender(arena, context.index), turn.push_job, len(workers), context.call_numbers())
    parked_memory = ParkedMemory(lambda: context.config)
    audit = audit_of(config)
    authorization = Authorization(metadata.authorizer, turn.topics, audit)
    throttling = Throttling(config, metadata, turn.clients, turn.meters, memory.quota_secret)
    jobs = Jobs(appends, waiting, len(workers), produces.end)
    return Broker(
        process=context,
        config=config,
        metadata=metadata,
        table=table,
        responses=Responses(
            context.index,
            arena,
            lambda p: outboxes[p],
            waiting,
            context.whose,
            partial(_closed_after, produces),
        ),
        admission=Admission(config, authorization, audit, throttling, memory.leading()),
        coordinator=coordinator,
        log=jobs,
        log_calls=[_log_client(context, arena, worker, turn) for worker in workers],
        failed_dirs=memory.failed_dirs,
        waiting=waiting,
        apis=apis_of(config),
        fetches=_fetches(context, number, table),
        fetch_sessions=_fetch_sessions(context, number, turn),
        forwarding=Forwarding(coordinator, parked_memory),
        parked_memory=parked_memory,
        readers=_readers(config, turn),
        remote=_remote(context, arena, outboxes),
        # A ring of the bell may miss a process that is about to sleep; the sleep itself reads the eventfd.
        prefetch=DiskPrefetch(lambda: os.eventfd_write(context.bell.fd, 1)),
        damaged=memory.words("damaged"),
        leading=memory.leading(),
        fetch_positions=turn.fetch_positions,
        preferred=PreferredReplicas(metadata, memory.words("readable")),
        producer_ids=ProducerIds(coordinator.call),
        transactions=TransactionChecks(coordinator, MarkerHolds(coordinator, jobs.are_up)),
        counters=context.counters,
        meters=turn.meters,
        logs_requests=lambda: turn.logs_requests,
        throttling=throttling,
        authorization=authorization,
        audit=audit,
        log_levels=LogLevels(memory),
        client_metrics=_client_metrics(context, metadata),
    )


def _client_metrics(context: ProcessContext, metadata: Metadata) -> ClientMetricsManager:
    queue = context.memory.client_metrics(context.index)

    def put(push: Push) -> None:
        queue.put(push)
        context.ring(EXPORTER)

    return ClientMetricsManager(metadata, context.config.telemetry_max_bytes, put, monotonic_ms)


def _closed_after(produces: ProduceOrder, request: Request) -> Sequence[Request]:
    """Remove and return the waiting produces of a connection that the produce `request` closes.

    For requests of other APIs there is nothing to return.
    """
    return produces.refuse(request) if request.api_key == ApiKey.PRODUCE else ()


def _fetches(context: ProcessContext, number: int, table: SlotTable) -> Fetches:
    marks = context.memory.marks()
    # The marks of a predecessor have no waiters.
    marks.clear_waiter(number)
    interval = context.config.fetch_purgatory_purge_interval_requests
    return Fetches(table, marks, number, context.counters, interval)


def _fetch_sessions(context: ProcessContext, number: int, turn: HandlerTurn) -> FetchSessionCache:
    return FetchSessionCache(
        session_slots(context.config),
        number,
        turn.fetch_sessions,
        context.counters,
        monotonic_ms,
        context.memory.sizes.partition_slots,
    )


def session_slots(config: BrokerConfig) -> int:
    """Return how many fetch sessions one handler may have."""
    return -(-config.max_incremental_fetch_session_cache_slots // config.num_io_threads)


def _readers(config: BrokerConfig, turn: HandlerTurn) -> Readers:
    """Return readers of partitions, which share the limit of open files with the fetch turn."""
    mirror = read_mirror(config)
    if mirror is None or mirror.partitions is None:
        readers = Readers(config.log_dirs)
    else:
        readers = ReplicaReaders(mirror.log_dirs)
    turn.fetch_positions.partitions_max = readers.turn_partitions_max
    return readers


def _coordinator(context: ProcessContext, arena: Arena, outbox: Outbox, turn: HandlerTurn) -> PatientClient:
    turn.forward(arena, next(context.call_numbers()), forwarded_apis(context.config))
    client = RpcClient(
        Lender(arena, context.index),
        COORDINATOR,
        context.memory.arena(COORDINATOR),
        outbox.push,
        iter(turn.next_call_number, None),
        outbox.push_quietly,
    )
    made = PatientClient(
        client,
        outbox.clear,
        outbox.rebind,
        context.counters,
        SUCCESSOR_MS,
        lambda: turn.forwarded_count,
    )
    made.server_is_up = context.is_alive(COORDINATOR)
    return made


def _remote(context: ProcessContext, arena: Arena, outboxes: Mapping[int, Outbox]) -> RemoteWindows:
    """Return the windows of remote segments. There is an outbox to the tier if tiered storage is on."""
    files, outbox = RemoteFiles(context.memory.words("remote")), outboxes.get(TIER)
    if outbox is None:
        return RemoteWindows(None, files)
    tier = PatientClient(
        _client(context, arena, TIER, outbox.push),
        outbox.clear,
        outbox.rebind,
        successor_ms=SUCCESSOR_MS,
    )
    tier.server_is_up = context.is_alive(TIER)
    return RemoteWindows(tier, files)


def _log_client(context: ProcessContext, arena: Arena, worker: int, turn: HandlerTurn) -> PatientClient:
    """Build the client for calls to a log worker. A call arrives after all jobs that were sent before it."""
    push = partial(turn.push_job, worker=worker)
    return PatientClient(_client(context, arena, log_worker(worker), push))


def forwarded_apis(config: BrokerConfig) -> list[tuple[int, int, int, int]]:
    """Return the APIs that the turn forwards by itself, in the form of `HandlerTurn.forward`.

    They are the requests that clients send often and without waiting for earlier responses.
    """
    apis, keys = all_apis(), [ApiKey.OFFSET_COMMIT, ApiKey.HEARTBEAT]
    if is_consumer_protocol_enabled(config.group_coordinator_rebalance_protocols):
        keys.append(ApiKey.CONSUMER_GROUP_HEARTBEAT)
    return [(key, apis[key].oldest, apis[key].latest, FIRST_FLEXIBLE[key]) for key in keys]


def _client(context: ProcessContext, arena: Arena, server: int, push: Callable[[bytes], object]) -> RpcClient:
    theirs = context.memory.arena(server)
    return RpcClient(Lender(arena, context.index), server, theirs, push, context.call_numbers())


def _make_waiting(context: ProcessContext, number: int) -> ResponseBackpressure:
    word = context.memory.words("replies_out")
    word.store(number, 0)
    return ResponseBackpressure(lambda waits: word.store(number, waits), monotonic_ms, context.whose)
