package io.mpbroker.spark;

import java.util.Arrays;
import org.apache.spark.sql.connector.catalog.CatalogV2Util;
import org.apache.spark.sql.connector.expressions.SortDirection;
import org.apache.spark.sql.connector.expressions.SortOrder;
import org.apache.spark.sql.connector.expressions.aggregate.Aggregation;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.SupportsPushDownAggregates;
import org.apache.spark.sql.connector.read.SupportsPushDownFilters;
import org.apache.spark.sql.connector.read.SupportsPushDownLimit;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.connector.read.SupportsPushDownTopN;
import org.apache.spark.sql.execution.datasources.v2.python.PythonTable;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * Accepts pushes from Spark that make a scan read less: filters, wanted columns, aggregates, or a limit.
 *
 * <p>Spark pushes only columns into the builder of a stream. At any other push this plans the batch, which
 * decides whether the JVM or Python reads it.
 */
final class LogScanBuilder
    implements SupportsPushDownFilters,
        SupportsPushDownRequiredColumns,
        SupportsPushDownAggregates,
        SupportsPushDownLimit,
        SupportsPushDownTopN {
  private final PythonTable table;
  private final ScanBuilder python;
  private final CaseInsensitiveStringMap options;
  private final StructType schema;
  private StructType pruned;
  private Filter[] pushed = new Filter[0];
  private Manifest manifest;
  private Aggregates aggregates;
  private long limit = Long.MAX_VALUE;
  private boolean fromEnd;

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
   * Plans with the filters that it knows. Returns all filters, since the plan may have other rows, too.
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

  /** Accepts aggregates that need few records. Each task returns a row, and Spark aggregates the rows. */
  @Override
  public boolean pushAggregation(Aggregation aggregation) {
    aggregates = Aggregates.of(aggregation);
    if (aggregates == null || !isOurs()) {
      aggregates = null;
      return false;
    }
    pruned = aggregates.schema();
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

  /** Accepts a limit of rows by offset. In a task topic and partition are the same for all rows. */
  @Override
  public boolean pushTopN(SortOrder[] orders, int rows) {
    SortOrder order =
        Arrays.stream(orders)
            .filter(one -> !Aggregates.CONSTANTS.contains(Aggregates.column(one.expression())))
            .findFirst()
            .orElse(null);
    if (order == null || !Aggregates.column(order.expression()).equals("offset") || !pushLimit(rows)) {
      return false;
    }
    fromEnd = order.direction() == SortDirection.DESCENDING;
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
    return isOurs()
        ? new LogScan(manifest, new LogScan.Wanted(pruned, limit, fromEnd, aggregates))
        : python.build();
  }

  Scan buildStream() {
    return new LogStreamScan(table, options, schema);
  }
}
