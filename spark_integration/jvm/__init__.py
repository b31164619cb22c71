"""The reader that runs in Spark's JVM: a jar that this package brings, for `format("mpbroker")`.

It decodes mapped segments for batch queries whose files are on the hosts of the tasks. The Python data source
plans these queries. The jar's code is in `java/`; `make setup-spark` builds the jar in this directory.
"""
