"""Errors between a query and a topic; each text names the problem, its place and the remedy."""

from __future__ import annotations


class OptionError(ValueError):
    """An option is missing, malformed, or contradicts another (Spark: IllegalArgumentException)."""


class SourceUnavailable(RuntimeError):
    """Neither files nor brokers can be read, or they do not have the topic."""


class FilesUnavailable(SourceUnavailable):
    """The files cannot be read from here, though a broker that is asked may give the same records."""


class DataLoss(RuntimeError):
    """Records of the wanted range no longer exist, and failOnDataLoss is on."""


class CorruptLog(RuntimeError):
    """Bytes within the visible part of a log are no record batches."""


SERVERS_ADVICE = "check kafka.bootstrap.servers and the broker's advertised.listeners"
LOSS_ADVICE = (
    "Some data may have been lost because they are no longer available; either the data was aged out or "
    "the topic may have been deleted before all the data in the topic was processed. If you don't want your "
    'query to fail on such cases, set the source option "failOnDataLoss" to "false".'
)
