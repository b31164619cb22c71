package io.mpbroker.spark;

import io.mpbroker.spark.Aggregates.Kind;
import java.io.IOException;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.PartitionReader;

/** Returns the aggregates of a range as a row, if it has one. Reads only the edges unless it must count. */
final class AggregateReader implements PartitionReader<InternalRow> {
  private final LogRange range;
  private final Manifest.Rules rules;
  private final Aggregates aggregates;
  private InternalRow row;
  private boolean done;
  private long bytes;

  AggregateReader(LogRange range, Manifest.Rules rules, Aggregates aggregates) {
    this.range = range;
    this.rules = rules;
    this.aggregates = aggregates;
  }

  @Override
  public boolean next() throws IOException {
    if (done) {
      return false;
    }
    done = true;
    if (aggregates.wantCount()) {
      RangeCounter all = RangeCounter.of(range, rules);
      bytes = all.bytes();
      row = aggregates.row(range, all, all);
    } else {
      RangeCounter last = aggregates.want(Kind.MAX) ? edge(true) : null;
      RangeCounter first = last == null || aggregates.want(Kind.MIN) ? edge(false) : last;
      row = aggregates.row(range, first, last == null ? first : last);
    }
    return row != null;
  }

  private RangeCounter edge(boolean atEnd) throws IOException {
    RangeCounter counter = RangeCounter.ofEdge(range, rules, 1, atEnd);
    bytes += counter.bytes();
    return counter;
  }

  @Override
  public InternalRow get() {
    return row;
  }

  @Override
  public CustomTaskMetric[] currentMetricsValues() {
    return new CustomTaskMetric[] {new ReadMetrics.Value(ReadMetrics.Bytes.NAME, bytes)};
  }

  @Override
  public void close() {}
}
