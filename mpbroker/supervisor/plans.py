"""The processes that must release the state of a dead role, and their order (sans-I/O).

A stage is an order to several processes at once. The next stage begins when all have acknowledged or died.
The stages after the death of a role are safe in this order:

handler      First the log workers append and answer all that the handler had published. Then coordinator and
             tier forget the handler's calls, and the coordinator lets those transactions end that waited for
             the batches of the handler. Then the processors sort the handler's requests: one that it took and
             did not answer is lost, any other can go to another handler.
processor    First the handlers forget the processor's connections, so that no new job refers to its arena.
             Then the log workers finish the jobs that refer to it. After that no process uses the arena.
log          First the handlers drop their requests to this log worker, and pause. Then the other log workers
             finish all their jobs, and the handlers answer the parts that the others return. Then the
             processors close each connection with a Produce request that a handler took and did not answer.
             Only requests that were lost with the log worker are still unanswered, and no process reads their
             memory. Then the handlers continue.
coordinator  The log workers finish the coordinator's published jobs. Then the handlers answer pending calls.
cleaner      The log workers finish the swap of files that the cleaner has requested. (When a log worker dies,
             the cleaner releases that worker's files before its successor opens them.)
scrubber     No process uses its memory. Its damage versions remain, and its successor uses them.
exporter     No process uses its memory, and it only reads.
tier         The handlers answer pending calls. Its words stay: its successor writes them again.
"""

from __future__ import annotations

from mpbroker.ipc import topology
from mpbroker.ipc.topology import HANDLERS, LOG_WORKERS, PROCESSORS, handlers_of, processors_of

# The stage of an order that welcomes a role: bind its rings. The stages of a death begin with 1.
WELCOME = 0


def stages_of(role: int) -> list[tuple[int, ...]]:
    """Return the stages of the fence after `role` has died: in each, the roles that acknowledge the death.

    Stages are numbered from 1.
    """
    if topology.is_handler(role):
        return [LOG_WORKERS, (topology.COORDINATOR, topology.TIER), processors_of(role)]
    if topology.is_processor(role):
        return [handlers_of(role), LOG_WORKERS]
    if topology.is_log_worker(role):
        others = tuple(worker for worker in LOG_WORKERS if worker != role)
        clients = (*HANDLERS, topology.COORDINATOR, topology.CLEANER)
        return [clients, others, HANDLERS, PROCESSORS, HANDLERS]
    if role == topology.COORDINATOR:
        return [LOG_WORKERS, HANDLERS]
    if role == topology.CLEANER:
        return [LOG_WORKERS]
    if role == topology.TIER:
        return [HANDLERS]
    return []


def needed_to_start(role: int) -> tuple[int, ...]:
    """Return the roles that must bind the rings (queues) of `role` before its process is forked.

    Coordinator and cleaner call the log workers at once. A processor has clients as soon as it serves: then
    handlers must be able to take its requests, and log workers to read the records in its arena.
    """
    if topology.is_processor(role):
        return (*handlers_of(role), *LOG_WORKERS)
    return LOG_WORKERS if role in (topology.COORDINATOR, topology.CLEANER) else ()


def peers_of(role: int) -> tuple[int, ...]:
    """Return the roles that must bind the rings of `role` again when its successor is ready."""
    if topology.is_handler(role):
        return (*LOG_WORKERS, topology.COORDINATOR, topology.TIER, *processors_of(role))
    if topology.is_log_worker(role):
        return (*HANDLERS, topology.COORDINATOR, topology.CLEANER, *PROCESSORS)
    if role in (topology.COORDINATOR, topology.TIER):
        return HANDLERS
    return ()


def givers_of(role: int) -> tuple[int, ...]:
    """Return the roles that give work to `role`, and must stop giving work before `role` can leave."""
    return processors_of(role) if topology.is_handler(role) else (topology.acceptor_of(role),)
