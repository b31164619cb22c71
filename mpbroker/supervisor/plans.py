"""The processes that must release the state of a dead role, and their order (sans-I/O).

Each stage is ordered to all its live members at once; the next begins when all have acknowledged. The stages
are safe in this order:

handler      First the log workers append and answer whatever the handler had published. Then the coordinator
             forgets its calls, and lets transactions end that had to wait for its batches. Then the
             processors decide: a request that was taken and not answered is lost, one that was not taken can
             go to another handler.
processor    First the handlers forget its connections, so that no new job names its arena. Then the log
             workers finish the jobs that do. After that no process touches the arena.
log          First the handlers drop requests under way with it, and pause. Then the other log workers finish
             all they have, and the handlers answer the parts that came back to them. Then the processors
             close the connections whose produce was taken and not answered: only those remain by now, and
             no process reads their requests. Then the handlers continue.
coordinator  The log workers finish its published jobs; handlers answer the calls that were under way.
cleaner      The log worker finishes a swap that it was asked for. The cleaner itself has let go of the
             files of a log process that died before the successor opens them.
scrubber     No process holds anything of it; its words of damage remain, and its successor uses them.
exporter     No process holds anything of it, and it only reads.
"""

from __future__ import annotations

from mpbroker.ipc import topology
from mpbroker.ipc.topology import HANDLERS, LOG_WORKERS, PROCESSORS, handlers_of, processors_of

# The stage of an order that welcomes a role: bind its rings. The stages of a death begin with 1.
WELCOME = 0


def stages_of(role: int) -> list[tuple[int, ...]]:
    """Return the stages after a death of `role`: for each, the process indices that must acknowledge.

    Stage numbers begin with 1.
    """
    if topology.is_handler(role):
        return [LOG_WORKERS, (topology.COORDINATOR,), processors_of(role)]
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
    return []


def needed_to_start(role: int) -> tuple[int, ...]:
    """Return the roles that must bind the rings of a role before it has a process.

    Coordinator and cleaner call the log workers at once. Connections wait for a processor; as soon as it
    serves, their requests come to handlers and, within its arena, to log workers.
    """
    if topology.is_processor(role):
        return (*handlers_of(role), *LOG_WORKERS)
    return LOG_WORKERS if role in (topology.COORDINATOR, topology.CLEANER) else ()


def peers_of(role: int) -> tuple[int, ...]:
    """Return the roles that must bind its rings again when the role's successor is ready."""
    if topology.is_handler(role):
        return (*LOG_WORKERS, topology.COORDINATOR, *processors_of(role))
    if topology.is_log_worker(role):
        return (*HANDLERS, topology.COORDINATOR, topology.CLEANER, *PROCESSORS)
    if role == topology.COORDINATOR:
        return HANDLERS
    return ()


def givers_of(role: int) -> tuple[int, ...]:
    """Return the roles that give work to this one, and must stop doing so before it can leave."""
    return processors_of(role) if topology.is_handler(role) else (topology.acceptor_of(role),)
