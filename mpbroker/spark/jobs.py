"""The jobs of `mpbroker spark`, as functions that take a SparkSession."""

from spark_integration.jobs.audit import Audit, audit
from spark_integration.jobs.audit_svg import draw
from spark_integration.jobs.frame import JobError, Notice, Silent, Source, check_sink, sentence_of
from spark_integration.jobs.mirror import MirrorSettings, mirror
from spark_integration.jobs.sessions import SessionSettings, sessions
from spark_integration.jobs.streams import Running

__all__ = [
    "Audit",
    "JobError",
    "MirrorSettings",
    "Notice",
    "Running",
    "SessionSettings",
    "Silent",
    "Source",
    "audit",
    "check_sink",
    "draw",
    "mirror",
    "sentence_of",
    "sessions",
]
