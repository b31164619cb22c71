"""The jobs of `mpbroker spark`, as functions that take a SparkSession."""

from spark_integration.jobs.archive import ArchiveSettings, Result, archive, partitioning
from spark_integration.jobs.audit import Audit, audit
from spark_integration.jobs.audit_svg import draw
from spark_integration.jobs.compact import Compacted, compact
from spark_integration.jobs.frame import JobError, Notice, Silent, Source, check_sink, sentence_of
from spark_integration.jobs.mirror import MirrorSettings, mirror
from spark_integration.jobs.replay import Replayed, ReplaySettings, replay
from spark_integration.jobs.sessions import SessionSettings, sessions
from spark_integration.jobs.streams import Running

__all__ = [
    "ArchiveSettings",
    "Audit",
    "Compacted",
    "JobError",
    "MirrorSettings",
    "Notice",
    "ReplaySettings",
    "Replayed",
    "Result",
    "Running",
    "SessionSettings",
    "Silent",
    "Source",
    "archive",
    "audit",
    "check_sink",
    "compact",
    "draw",
    "mirror",
    "partitioning",
    "replay",
    "sentence_of",
    "sessions",
]
