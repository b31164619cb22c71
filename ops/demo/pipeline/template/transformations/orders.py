"""Orders: events are cleaned, summed up by customer, and the large ones go into a topic of their own."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

spark = SparkSession.active()
SERVERS = str(spark.conf.get("orders.servers"))
LARGE = 500


@dp.table(comment="Each order once; other events are left out.")
def cleaned() -> DataFrame:
    """Each run appends the valid orders among the events since the previous run."""
    events = (
        spark.readStream.format("mpbroker")
        .option("kafka.bootstrap.servers", SERVERS)
        .option("subscribe", "orders")
        .option("startingOffsets", "earliest")
        .load()
    )
    order = F.from_json(F.col("value").cast("string"), "id long, customer string, amount long")
    found = events.select("timestamp", order.alias("order")).select("timestamp", "order.*")
    return found.where("id is not null and amount > 0")


@dp.materialized_view(comment="What each customer has ordered.")
def totals() -> DataFrame:
    """Each run computes the totals of all cleaned orders again."""
    orders = spark.read.table("cleaned").groupBy("customer")
    return orders.agg(F.count("*").alias("orders"), F.sum("amount").alias("amount"))


dp.create_sink(
    "large_orders",
    "mpbroker",
    {
        "kafka.bootstrap.servers": SERVERS,
        "topic": "large-orders",
        "exactlyOnce": "true",
        "sinkId": "large-orders",
    },
)


@dp.append_flow(target="large_orders")
def large() -> DataFrame:
    """Large orders go into a topic, each once, in transactions."""
    orders = spark.readStream.table("cleaned").where(F.col("amount") >= LARGE)
    return orders.select(
        F.col("customer").alias("key"), F.to_json(F.struct("id", "customer", "amount")).alias("value")
    )
