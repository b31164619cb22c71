"""The demo's Spark job: shows the topic `orders`, read from the log directory on the command line."""

import sys

from pyspark.sql import SparkSession
from pyspark.sql.functions import col, get_json_object
from pyspark.sql.functions import sum as total


def main(log_dir: str) -> None:
    print("starting Spark, which takes some seconds", file=sys.stderr)
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("mpbroker demo")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
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
