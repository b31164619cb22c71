"""The PySpark data source `mpbroker`, and jobs that run on it.

A task maps the segment files of its range and decodes them natively into Arrow; no broker is involved. On a
host without the files it fetches the same bytes over the Kafka protocol. See docs/SPARK.md.
"""
