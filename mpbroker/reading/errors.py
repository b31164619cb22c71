"""Errors and warnings of queries; each text names the problem, its place and the remedy."""

from __future__ import annotations

import logging

_LOG = logging.getLogger("mpbroker.spark")
_warned: set[str] = set()


class OptionError(ValueError):
    """An option is missing, malformed, or contradicts another one (Spark: IllegalArgumentException)."""


class SourceUnavailable(RuntimeError):
    """Neither files nor brokers can be read, or the topic does not exist in them."""


class FilesUnavailable(SourceUnavailable):
    """This process cannot read the broker's files; fetching the records from the broker may still succeed."""


class DataLoss(RuntimeError):
    """Records of the wanted range no longer exist, and failOnDataLoss is on."""


class CorruptLog(RuntimeError):
    """The readable part of a log has bytes that are not valid record batches."""


SERVERS_ADVICE = "check kafka.bootstrap.servers and the broker's advertised.listeners"
LOSS_ADVICE = (
    "Some data may have been lost because they are no longer available; either the data was aged out or "
    "the topic may have been deleted before all the data in the topic was processed. If you don't want your "
    'query to fail on such cases, set the source option "failOnDataLoss" to "false".'
)


def warn_once(text: str, key: str | None = None) -> None:
    """Log a warning, unless this process has logged one with the same key; the key is by default the text."""
    if (key or text) not in _warned:
        _warned.add(key or text)
        _LOG.warning("%s", text)
