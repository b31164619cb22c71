"""What the broker's processes run, imported while others of them start.

The supervisor imports everything, so that all processes share it, and before any role can need a successor:
the files may be those of another release by then. But it imports late. A process that has been forked waits
for its disk, or uses another CPU, meanwhile. `prepare_*` are called in the order of the start.
"""

from __future__ import annotations

from importlib import import_module

from mpbroker.ipc.process import ProcessContext
from mpbroker.protocol import codec
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.api_versions import Served

HOT_APIS = (
    ApiKey.PRODUCE,
    ApiKey.FETCH,
    ApiKey.METADATA,
    ApiKey.API_VERSIONS,
    ApiKey.LIST_OFFSETS,
    ApiKey.INIT_PRODUCER_ID,
)


def prepare_coordinator() -> None:
    import_module("mpbroker.coordinator.process")
    from mpbroker.coordinator.metadata import metadata_records

    metadata_records.prepare()


def prepare_workers() -> None:
    """Prepare handlers, processors and acceptors, which start together."""
    import_module("mpbroker.handlers.process")
    import_module("mpbroker.network.acceptor.acceptor")
    import_module("mpbroker.network.processor.processor")
    served()
    for key in HOT_APIS:
        codec.prepare(key)


def prepare_scrubber() -> None:
    """Prepare the scrubber, and what the supervisor needs when it is asked for a scrub."""
    import_module("mpbroker.supervisor.scrubbing")


def prepare_cleaner() -> None:
    """Prepare a successor of the cleaner. Nobody waits for the first one, which imports beside the others."""
    import_module("mpbroker.log.compaction.cleaner_process")


def served() -> tuple[Served, ...]:
    """Return the APIs that the handlers serve."""
    from mpbroker.handlers import apis

    return apis.served()


def coordinator(context: ProcessContext, cluster_id: str) -> int:
    from mpbroker.coordinator import process

    return process.run(context, cluster_id=cluster_id)


def handler(context: ProcessContext) -> int:
    from mpbroker.handlers import process

    return process.run(context)


def cleaner(context: ProcessContext) -> int:
    from mpbroker.log.compaction import cleaner_process

    return cleaner_process.run(context)


def scrubber(context: ProcessContext) -> int:
    from mpbroker.log.scrub import scrub_process

    return scrub_process.run(context)
