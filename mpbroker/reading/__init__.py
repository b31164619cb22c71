"""Reads topics as Arrow batches, from a broker's files or over the wire; knows nothing of Spark.

`options` describes a query, a catalog (`local` or `remote`) knows the topics and their offsets, `plan` makes
ranges of both, and `read` gives the records of one range. Spark and the command line read by these rules.
"""
