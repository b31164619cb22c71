package io.mpbroker.spark;

import java.io.IOException;
import java.io.Serializable;
import java.io.UncheckedIOException;
import java.util.List;
import java.util.OptionalLong;
import java.util.Set;
import java.util.stream.Collectors;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.Statistics;
import org.apache.spark.sql.connector.read.SupportsReportStatistics;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/** Executes a planned batch scan, with a task for each range of the manifest. */
final class LogScan implements Scan, Batch, SupportsReportStatistics {
  private static final Set<String> STORED = Set.of("key", "value", "headers");

  private final Manifest manifest;
  private final Wanted wanted;

  LogScan(Manifest manifest, Wanted wanted) {
    this.manifest = manifest;
    this.wanted = wanted;
  }

  /**
   * Holds what the query wants of each range: columns of its first or last records, at least as many as the
   * limit. If {@code aggregates} is not null, the query wants these instead of records.
   */
  record Wanted(StructType schema, long limit, boolean fromEnd, Aggregates aggregates)
      implements Serializable {
    boolean aggregated() {
      return aggregates != null;
    }
  }

  @Override
  public StructType readSchema() {
    return wanted.schema();
  }

  @Override
  public String description() {
    String topics =
        manifest.tasks().stream().map(LogRange::topic).distinct().collect(Collectors.joining(", "));
    String bound = wanted.fromEnd() ? ", last " : ", limit ";
    return "mpbroker by its JVM reader, " + how() + ": topics [" + topics + "], " + wanted.schema().simpleString()
        + (wanted.limit() < Long.MAX_VALUE ? bound + wanted.limit() : "");
  }

  /** Describes for the user from where tasks read. */
  private String how() {
    long stored = manifest.tasks().stream().filter(one -> one.bucket() != null).count();
    if (stored == manifest.tasks().size() && stored > 0) {
      return "from a bucket";
    }
    if (manifest.rules().brokers() == null) {
      return "from files";
    }
    boolean fetchesAll = manifest.tasks().stream().allMatch(one -> one.places().isEmpty());
    return (stored > 0 ? "from a bucket, after that " : "")
        + (fetchesAll ? "fetching" : "from files where a task finds them, else fetching");
  }

  @Override
  public Batch toBatch() {
    return this;
  }

  /** Returns the tasks. Aggregates without ranges get a task over nothing, since SQL wants a count of 0. */
  @Override
  public InputPartition[] planInputPartitions() {
    if (wanted.aggregated() && manifest.tasks().isEmpty()) {
      return new InputPartition[] {LogRange.NOTHING};
    }
    return manifest.tasks().toArray(new InputPartition[0]);
  }

  @Override
  public PartitionReaderFactory createReaderFactory() {
    return new Readers(manifest.rules(), wanted);
  }

  @Override
  public ColumnarSupportMode columnarSupportMode() {
    return wanted.aggregated() ? ColumnarSupportMode.UNSUPPORTED : ColumnarSupportMode.SUPPORTED;
  }

  /**
   * Estimates rows by offsets, which is an upper bound, and bytes by the size of keys, values and headers. For
   * fetched ranges the bytes are not known: Spark then assumes very many.
   */
  @Override
  public Statistics estimateStatistics() {
    List<LogRange> tasks = manifest.tasks();
    long offsets = tasks.stream().mapToLong(one -> one.end() - one.start()).sum();
    long rows = wanted.aggregated() ? Math.max(tasks.size(), 1) : offsets;
    long width = 0;
    boolean stored = false;
    for (StructField field : wanted.schema().fields()) {
      stored |= STORED.contains(field.name());
      width += STORED.contains(field.name()) ? 0 : field.dataType().defaultSize();
    }
    long bytes = rows * width + (stored ? tasks.stream().mapToLong(LogRange::bytes).sum() : 0);
    boolean isKnown = !stored || tasks.stream().noneMatch(one -> one.places().isEmpty() && one.bucket() == null);
    return new Estimate(
        isKnown ? OptionalLong.of(Math.max(bytes, 1)) : OptionalLong.empty(), OptionalLong.of(rows));
  }

  @Override
  public CustomMetric[] supportedCustomMetrics() {
    return ReadMetrics.all();
  }

  /** Returns the factory of readers for the columns of a schema, in ranges of any plan. */
  static PartitionReaderFactory readers(Manifest.Rules rules, StructType schema) {
    return new Readers(rules, new Wanted(schema, Long.MAX_VALUE, false, null));
  }

  private record Estimate(OptionalLong sizeInBytes, OptionalLong numRows) implements Statistics {}

  /** Makes the readers. It is serialized and sent to the tasks. */
  private record Readers(Manifest.Rules rules, Wanted wanted) implements PartitionReaderFactory {

    @Override
    public boolean supportColumnarReads(InputPartition partition) {
      return !wanted.aggregated();
    }

    @Override
    public PartitionReader<ColumnarBatch> createColumnarReader(InputPartition partition) {
      LogRange range = (LogRange) partition;
      try {
        if (wanted.fromEnd()) {
          LogRange end = RangeCounter.ofEdge(range, rules, wanted.limit(), true).range();
          return new RecordReader(end, rules, wanted.schema(), Long.MAX_VALUE);
        }
        return new RecordReader(range, rules, wanted.schema(), wanted.limit());
      } catch (IOException error) {
        throw new UncheckedIOException(error);
      }
    }

    @Override
    public PartitionReader<InternalRow> createReader(InputPartition partition) {
      return new AggregateReader((LogRange) partition, rules, wanted.aggregates());
    }
  }
}
