"""The planner for the JVM reader. Spark's daemon runs only modules whose names begin with `pyspark`."""

from pyspark.worker_util import get_sock_file_to_executor

from spark_integration.jvm.planner import main

__all__ = ["main"]

if __name__ == "__main__":
    with get_sock_file_to_executor() as sock_file:
        main(sock_file, sock_file)
