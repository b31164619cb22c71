"""The parent of Python workers of local sessions, in place of `pyspark.daemon`: they end in silence."""

from pyspark import daemon

from spark_integration.workers import in_silence

if __name__ == "__main__":
    vars(daemon)["worker"] = in_silence(daemon.worker)
    daemon.manager()
