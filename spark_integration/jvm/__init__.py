"""The reader that runs in Spark's JVM: a jar that this package brings, for `format("mpbroker")`.

It decodes mapped segments for batch queries whose files are on the hosts of the tasks. Its plans are those of
the Python source. Its sources are in `java/`; `make setup-spark` builds the jar in this directory.
"""
