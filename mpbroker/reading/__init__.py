"""Reads topics as Arrow batches, from a broker's files or over the wire; knows nothing of Spark.

`options` says what is wanted, a catalog (`local` or `remote`) knows what is there, `plan` makes ranges of it,
and `read` gives the records of one range. Spark and the command line read by these rules.
"""
