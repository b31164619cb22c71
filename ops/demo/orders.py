"""The demo's Spark job: shows the topic `orders`, read from the log directory on the command line."""

import sys

from pyspark.sql.functions import col, get_json_object
from pyspark.sql.functions import sum as total

from mpbroker.spark import session


def main(log_dir: str) -> None:
    print("starting Spark, which takes some seconds", file=sys.stderr)
    spark = session("mpbroker demo", "local[2]", quiet=True)
    print("Spark runs, the first query begins", file=sys.stderr)
    orders = spark.read.format("mpbroker").option("log.dir", log_dir).option("subscribe", "orders").load()
    text = orders.select(
        "partition", "offset", "timestamp", col("key").cast("string"), col("value").cast("string")
    )
    text.orderBy("partition", "offset").show(truncate=False)
    amount = get_json_object("value", "$.amount").cast("long")
    text.groupBy(col("key").alias("customer")).agg(total(amount).alias("amount")).orderBy("customer").show()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
