"""Spark's JVM for tests: jars and settings that it is started with stay with it, so some need a fresh one."""

from __future__ import annotations

from pyspark import SparkContext


def end_jvm(within_s: float = 60) -> None:
    """Ends the JVM that earlier sessions of this process have left, so that the next one starts its own."""
    gateway = SparkContext._gateway
    if gateway is None:
        return
    process = gateway.proc
    gateway.shutdown()
    SparkContext._gateway = SparkContext._jvm = None
    # It ends when its standard input does.
    process.stdin.close()
    process.wait(within_s)
