"""Who has to let go of a dead role, and in which order (sans-I/O).

Each stage is ordered to all its live members at once; the next begins when all have acknowledged. The order
is what makes it safe:

handler      First the log process appends and answers whatever the handler had published, and the coordinator
             forgets its calls. Then the processors can tell: what is still unanswered and was taken is lost,
             what was not taken can go to another.
processor    First the handlers forget its connections, so that no new job names its arena. Then the log
             process finishes the jobs that do. After that nobody touches the arena.
log          First the handlers drop what was under way with it, and pause. Then the processors close the
             connections whose produce was taken and not answered: with the handlers pausing, nothing else
             can look like that. Then the handlers go on.
coordinator  The log process finishes what it had published; handlers answer the calls that were under way.
cleaner      The log process finishes a swap that it was asked for. The cleaner itself has let go of the
             files of a log process that died before the successor looks at them.
scrubber     Nobody holds anything of it; its words of damage stay, and its successor goes on with them.
"""

from __future__ import annotations

from mpbroker.ipc import topology
from mpbroker.ipc.topology import HANDLERS, PROCESSORS, handlers_of, processors_of

# The stage of an order that a role is there: bind its rings. Those of a death begin with 1.
WELCOME = 0


def stages_of(role: int) -> list[tuple[int, ...]]:
    """The stages of a death, each the process indices that must acknowledge; stage numbers begin with 1."""
    if topology.is_handler(role):
        return [(topology.LOG, topology.COORDINATOR), processors_of(role)]
    if topology.is_processor(role):
        return [handlers_of(role), (topology.LOG,)]
    if role == topology.LOG:
        return [(*HANDLERS, topology.COORDINATOR, topology.CLEANER), PROCESSORS, HANDLERS]
    if role == topology.COORDINATOR:
        return [(topology.LOG,), HANDLERS]
    if role == topology.CLEANER:
        return [(topology.LOG,)]
    return []


def needed_to_start(role: int) -> tuple[int, ...]:
    """Who must bind the rings of a successor before it is ready: who asks the log process at once."""
    return (topology.LOG,) if role in (topology.COORDINATOR, topology.CLEANER) else ()


def peers_of(role: int) -> tuple[int, ...]:
    """Who must bind its rings anew when the role's successor is ready."""
    if topology.is_handler(role):
        return (topology.LOG, topology.COORDINATOR, *processors_of(role))
    if topology.is_processor(role):
        return (*handlers_of(role), topology.LOG)
    if role == topology.LOG:
        return (*HANDLERS, topology.COORDINATOR, topology.CLEANER, *PROCESSORS)
    if role == topology.COORDINATOR:
        return HANDLERS
    return ()


def givers_of(role: int) -> tuple[int, ...]:
    """Who gives the role work, and has to stop that before it can leave."""
    return processors_of(role) if topology.is_handler(role) else (topology.acceptor_of(role),)
