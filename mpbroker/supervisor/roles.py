"""Late imports of the supervisor, and the entry points of the roles that are imported late.

The supervisor imports everything, so that its children share the memory, and before a child has to be
replaced: by then the files may belong to another release. It imports the modules of a role only while the
role before it starts, because that one waits for its disk or runs on another CPU. Call the `prepare_*`
functions in the order of the start.
"""

from __future__ import annotations

from importlib import import_module

from mpbroker.config.otlp import Destination
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
    """Import the coordinator, and prepare the codecs of its records."""
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
    """Import the cleaner for a replacement. The first cleaner imports it itself; nobody waits for that."""
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


def prepare_exporter() -> None:
    """Import the exporter for a replacement. The first one imports it itself; nobody waits for that."""
    import_module("mpbroker.exporter.process")


def scrubber(context: ProcessContext) -> int:
    from mpbroker.log.scrub import scrub_process

    return scrub_process.run(context)


def exporter(
    context: ProcessContext,
    fd: int,
    otlp: Destination | None,
    cluster_id: str,
    began_ns: int,
    console: str,
) -> int:
    from mpbroker.exporter import process

    return process.run(context, fd, otlp, cluster_id, began_ns, console)
