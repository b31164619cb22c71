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

/** Accepts from Spark what makes a scan read less: wanted columns, a limit, or a count. */
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

  /** Accepts COUNT(*) without grouping. Each task counts its range, and Spark adds the counts up. */
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

  /** Accepts a limit. Each task ends when it has that many rows; Spark still cuts their sum. */
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
