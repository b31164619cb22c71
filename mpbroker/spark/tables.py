"""Topics as Iceberg tables: the job of `mpbroker tables`, its file, and the tables' status and catalog."""

from spark_integration.tables.catalog import LakeSettings, open_catalog
from spark_integration.tables.job import Done, TablesJob
from spark_integration.tables.replay import Replayed, ReplaySettings, checked_replay, replay
from spark_integration.tables.settings import Settings, read_settings
from spark_integration.tables.status import Reason, TableStatus, reasons, statuses

__all__ = [
    "Done",
    "LakeSettings",
    "Reason",
    "ReplaySettings",
    "Replayed",
    "Settings",
    "TableStatus",
    "TablesJob",
    "checked_replay",
    "open_catalog",
    "read_settings",
    "reasons",
    "replay",
    "statuses",
]
