package io.mpbroker.spark;

import java.io.IOException;
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
  private final StructType schema;
  private final boolean counts;
  private final long limit;

  LogScan(Manifest manifest, StructType schema, boolean counts, long limit) {
    this.manifest = manifest;
    this.schema = schema;
    this.counts = counts;
    this.limit = limit;
  }

  @Override
  public StructType readSchema() {
    return schema;
  }

  @Override
  public String description() {
    String topics =
        manifest.tasks().stream().map(LogRange::topic).distinct().collect(Collectors.joining(", "));
    String bound = limit < Long.MAX_VALUE ? ", limit " + limit : "";
    return "mpbroker by its JVM reader, " + how() + ": topics [" + topics + "], " + schema.simpleString() + bound;
  }

  /** Returns how tasks read: each looks for the files of its range. */
  private String how() {
    if (manifest.rules().brokers() == null) {
      return "from files";
    }
    boolean fetchesAll = manifest.tasks().stream().allMatch(one -> one.places().isEmpty());
    return fetchesAll ? "fetching" : "from files where a task finds them, else fetching";
  }

  @Override
  public Batch toBatch() {
    return this;
  }

  /** Returns the tasks. A count without ranges gets a task over nothing, since SQL wants a row with 0. */
  @Override
  public InputPartition[] planInputPartitions() {
    if (counts && manifest.tasks().isEmpty()) {
      return new InputPartition[] {LogRange.NOTHING};
    }
    return manifest.tasks().toArray(new InputPartition[0]);
  }

  @Override
  public PartitionReaderFactory createReaderFactory() {
    return new Readers(manifest.rules(), schema, counts, limit);
  }

  @Override
  public ColumnarSupportMode columnarSupportMode() {
    return counts ? ColumnarSupportMode.UNSUPPORTED : ColumnarSupportMode.SUPPORTED;
  }

  /**
   * Estimates rows by offsets, which is an upper bound, and bytes by those of keys, values and headers. The latter
   * are not known of ranges that are fetched: Spark then assumes very many.
   */
  @Override
  public Statistics estimateStatistics() {
    List<LogRange> tasks = manifest.tasks();
    long offsets = tasks.stream().mapToLong(one -> one.end() - one.start()).sum();
    long rows = counts ? Math.max(tasks.size(), 1) : offsets;
    long width = 0;
    boolean stored = false;
    for (StructField field : schema.fields()) {
      stored |= STORED.contains(field.name());
      width += STORED.contains(field.name()) ? 0 : field.dataType().defaultSize();
    }
    long bytes = rows * width + (stored ? tasks.stream().mapToLong(LogRange::bytes).sum() : 0);
    boolean isKnown = !stored || tasks.stream().noneMatch(one -> one.places().isEmpty());
    return new Estimate(
        isKnown ? OptionalLong.of(Math.max(bytes, 1)) : OptionalLong.empty(), OptionalLong.of(rows));
  }

  @Override
  public CustomMetric[] supportedCustomMetrics() {
    return ReadMetrics.all();
  }

  /** Returns what reads the columns of a schema in ranges of any plan. */
  static PartitionReaderFactory readers(Manifest.Rules rules, StructType schema) {
    return new Readers(rules, schema, false, Long.MAX_VALUE);
  }

  private record Estimate(OptionalLong sizeInBytes, OptionalLong numRows) implements Statistics {}

  /** Makes the readers. It is serialized and sent to the tasks. */
  private record Readers(Manifest.Rules rules, StructType schema, boolean counts, long limit)
      implements PartitionReaderFactory {

    @Override
    public boolean supportColumnarReads(InputPartition partition) {
      return !counts;
    }

    @Override
    public PartitionReader<ColumnarBatch> createColumnarReader(InputPartition partition) {
      try {
        return new RecordReader((LogRange) partition, rules, schema, limit);
      } catch (IOException error) {
        throw new UncheckedIOException(error);
      }
    }

    @Override
    public PartitionReader<InternalRow> createReader(InputPartition partition) {
      return new CountReader((LogRange) partition, rules);
    }
  }
}
