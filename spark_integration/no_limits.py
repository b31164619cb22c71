"""Stands in for `pyspark.sql.streaming.datasource` before Spark 4.2, which never asks for limits."""

from __future__ import annotations

from dataclasses import dataclass


class ReadLimit:
    """A limit of what a trigger takes."""


@dataclass
class ReadAllAvailable(ReadLimit):
    """Takes everything there is."""


@dataclass
class ReadMinRows(ReadLimit):
    """Takes at least so many rows."""

    min_rows: int


@dataclass
class ReadMaxRows(ReadLimit):
    """Takes at most so many rows."""

    max_rows: int


@dataclass
class ReadMaxBytes(ReadLimit):
    """Takes at most so many bytes."""

    max_bytes: int


class SupportsTriggerAvailableNow:
    """A source that can stop at what was there when the run began."""
