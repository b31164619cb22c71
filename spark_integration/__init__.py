"""Spark reads topics: the PySpark data source `mpbroker`, and jobs that run on it.

A task maps the segment files of its range and decodes them natively into Arrow, without a broker in the
way; where the files are not, it fetches the same bytes over the Kafka protocol. See docs/SPARK.md.
"""
