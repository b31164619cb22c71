package io.mpbroker.spark;

import java.util.Arrays;
import org.apache.spark.sql.connector.catalog.CatalogV2Util;
import org.apache.spark.sql.connector.expressions.aggregate.AggregateFunc;
import org.apache.spark.sql.connector.expressions.aggregate.Aggregation;
import org.apache.spark.sql.connector.expressions.aggregate.CountStar;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.SupportsPushDownAggregates;
import org.apache.spark.sql.connector.read.SupportsPushDownFilters;
import org.apache.spark.sql.connector.read.SupportsPushDownLimit;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.execution.datasources.v2.python.PythonTable;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * Accepts from Spark what makes a scan read less: wanted columns, a limit, or a count.
 *
 * <p>Spark pushes nothing but columns into the builder of a stream. Any other push has the batch planned, which
 * decides whether the JVM or Python reads it.
 */
final class LogScanBuilder
    implements SupportsPushDownFilters,
        SupportsPushDownRequiredColumns,
        SupportsPushDownAggregates,
        SupportsPushDownLimit {
  private final PythonTable table;
  private final ScanBuilder python;
  private final CaseInsensitiveStringMap options;
  private final StructType schema;
  private StructType pruned;
  private Filter[] pushed = new Filter[0];
  private Manifest manifest;
  private boolean counts;
  private long limit = Long.MAX_VALUE;

  LogScanBuilder(PythonTable table, CaseInsensitiveStringMap options) {
    this.table = table;
    this.python = table.newScanBuilder(options);
    this.options = options;
    this.schema = CatalogV2Util.v2ColumnsToStructType(table.columns());
    this.pruned = schema;
  }

  /** Plans the query once. Returns true if the JVM reads it, false if the Python scan does. */
  private boolean isOurs() {
    if (manifest == null) {
      manifest = Planner.plan(options, schema, pushed);
      if (manifest.declined() != null) {
        Failures.reportPython(manifest.declined());
      }
    }
    return manifest.declined() == null;
  }

  /**
   * Plans by those filters that it knows. Returns all, since the plan may have other rows, too.
   *
   * <p>If Python reads the query, Python decides.
   */
  @Override
  public Filter[] pushFilters(Filter[] filters) {
    pushed = Conditions.known(filters);
    if (isOurs() || !(python instanceof SupportsPushDownFilters theirs)) {
      return filters;
    }
    Filter[] left = theirs.pushFilters(filters);
    pushed = theirs.pushedFilters();
    return left;
  }

  @Override
  public Filter[] pushedFilters() {
    return pushed;
  }

  /** Returns the pushed filters in the words of Spark's own sources, to be part of a description. */
  String describePushed() {
    return pushed.length == 0 ? "" : ", PushedFilters: " + Arrays.toString(pushed);
  }

  @Override
  public void pruneColumns(StructType required) {
    pruned = required;
  }

  /** Accepts COUNT(*) without grouping. Each task counts its range, and Spark adds the counts up. */
  @Override
  public boolean pushAggregation(Aggregation aggregation) {
    AggregateFunc[] functions = aggregation.aggregateExpressions();
    boolean only = functions.length == 1 && functions[0] instanceof CountStar;
    if (!isOurs() || !only || aggregation.groupByExpressions().length > 0) {
      return false;
    }
    counts = true;
    pruned = new StructType().add("count(*)", DataTypes.LongType, false);
    return true;
  }

  /** Accepts a limit. Each task ends when it has that many rows; Spark still cuts their sum. */
  @Override
  public boolean pushLimit(int rows) {
    if (!isOurs()) {
      return false;
    }
    limit = rows;
    return true;
  }

  @Override
  public boolean isPartiallyPushed() {
    return true;
  }

  @Override
  public Scan build() {
    return new QueryScan(this);
  }

  Scan buildBatch() {
    return isOurs() ? new LogScan(manifest, pruned, counts, limit) : python.build();
  }

  Scan buildStream() {
    return new LogStreamScan(table, options, schema);
  }
}
