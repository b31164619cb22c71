"""Topics as Iceberg tables: the job of `mpbroker tables`, the file that declares tables, and their status."""

from spark_integration.tables.job import Done, TablesJob
from spark_integration.tables.replay import Replayed, ReplaySettings, replay
from spark_integration.tables.settings import Settings, read_settings
from spark_integration.tables.status import Reason, TableStatus, reasons, statuses

__all__ = [
    "Done",
    "Reason",
    "ReplaySettings",
    "Replayed",
    "Settings",
    "TableStatus",
    "TablesJob",
    "read_settings",
    "reasons",
    "replay",
    "statuses",
]
