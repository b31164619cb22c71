"""The entry points of the roles, and their imports, which the supervisor delays until its checks are done.

The supervisor imports everything before it forks its first child. So the children share the memory. A child's
successor starts without reading files: the files may belong to another release by then. Importing each role
while the previous role starts would save a tenth of the start time, but take 14 MB more memory (26 MB
with the exporter).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from mpbroker.config.broker import BrokerConfig
from mpbroker.config.otlp import Destination
from mpbroker.ipc.process import ProcessContext
from mpbroker.protocol import codec
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.api_versions import Served

if TYPE_CHECKING:
    from mpbroker.console.app import Console
    from mpbroker.observe.offset_follower import OffsetFollower

HOT_APIS = (
    *(ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.METADATA, ApiKey.API_VERSIONS, ApiKey.LIST_OFFSETS),
    ApiKey.INIT_PRODUCER_ID,
)


# The modules of the roles.
MODULES = (
    *("mpbroker.coordinator.process", "mpbroker.handlers.process", "mpbroker.network.acceptor.acceptor"),
    *("mpbroker.network.processor.processor", "mpbroker.log.compaction.cleaner_process"),
)


def prepare(*, has_exporter: bool, has_tier: bool = False) -> None:
    """Import the modules of all roles, and prepare the codecs of common requests and of the metadata."""
    optional = {"mpbroker.exporter.process": has_exporter, "mpbroker.remote.tier.process": has_tier}
    for name in (*MODULES, *(name for name, is_wanted in optional.items() if is_wanted)):
        import_module(name)
    from mpbroker.coordinator.metadata import metadata_records
    from mpbroker.network.processor import processor

    metadata_records.prepare()
    for key in HOT_APIS:
        codec.prepare(key)
    # Compiles the encoders of all versions, for every processor.
    processor.api_versions_bodies(served(BrokerConfig()))


def served(config: BrokerConfig) -> tuple[Served, ...]:
    from mpbroker.handlers import apis

    return apis.served(config)


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


def tier(context: ProcessContext, cluster_id: str) -> int:
    from mpbroker.remote.tier import process

    return process.run(context, cluster_id)


def exporter(
    context: ProcessContext, fd: int, otlp: Destination | None, cluster_id: str, began_ns: int
) -> int:
    from mpbroker.exporter import process

    return process.run(context, fd, otlp, cluster_id, began_ns, console)


def console(context: ProcessContext, offsets: OffsetFollower) -> Console:
    """Import and return the web console. The exporter's process calls this at the first request for it."""
    # Not imported before the first request for it: a console that is never opened takes no memory.
    from mpbroker.console import app

    return app.Console(context, offsets)
