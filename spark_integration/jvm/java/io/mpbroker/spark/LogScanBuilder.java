package io.mpbroker.spark;

import org.apache.spark.sql.connector.expressions.aggregate.AggregateFunc;
import org.apache.spark.sql.connector.expressions.aggregate.Aggregation;
import org.apache.spark.sql.connector.expressions.aggregate.CountStar;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.SupportsPushDownAggregates;
import org.apache.spark.sql.connector.read.SupportsPushDownLimit;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;

/** Takes from Spark what a scan need not read: columns, records behind a limit, all of them for a count. */
final class LogScanBuilder
    implements SupportsPushDownRequiredColumns, SupportsPushDownAggregates, SupportsPushDownLimit {
  private final Manifest manifest;
  private StructType schema;
  private boolean counts;
  private long limit = Long.MAX_VALUE;

  LogScanBuilder(Manifest manifest, StructType schema) {
    this.manifest = manifest;
    this.schema = schema;
  }

  @Override
  public void pruneColumns(StructType required) {
    schema = required;
  }

  /** Takes COUNT(*) over everything, which each task answers for its range; Spark adds them up. */
  @Override
  public boolean pushAggregation(Aggregation aggregation) {
    AggregateFunc[] functions = aggregation.aggregateExpressions();
    boolean only = functions.length == 1 && functions[0] instanceof CountStar;
    if (!only || aggregation.groupByExpressions().length > 0) {
      return false;
    }
    counts = true;
    schema = new StructType().add("count(*)", DataTypes.LongType, false);
    return true;
  }

  /** Each task ends when it has so many rows; Spark still cuts what they give together. */
  @Override
  public boolean pushLimit(int rows) {
    limit = rows;
    return true;
  }

  @Override
  public boolean isPartiallyPushed() {
    return true;
  }

  @Override
  public Scan build() {
    return new LogScan(manifest, schema, counts, limit);
  }
}
