"""Reads topics as Arrow batches, from a broker's files or over the Kafka protocol; does not import Spark.

`options` parses a query. `local_catalog` and `remote_catalog` find its topics and their offsets, `plan` makes
ranges of offsets from a query and a catalog, and `read` yields the records of a range. The Spark source and
the command line use this package.
"""
