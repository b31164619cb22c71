package io.mpbroker.spark;

import io.mpbroker.spark.Manifest.Rules;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.channels.ClosedChannelException;
import java.util.Arrays;
import java.util.Map;
import java.util.Optional;
import net.razorvine.pickle.Unpickler;
import net.razorvine.pickle.objects.ClassDict;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.connector.read.streaming.PartitionOffset;
import org.apache.spark.sql.connector.read.streaming.ReadLimit;
import org.apache.spark.sql.connector.read.streaming.ReportsSourceMetrics;
import org.apache.spark.sql.connector.read.streaming.SupportsRealTimeMode;
import org.apache.spark.sql.connector.read.streaming.SupportsTriggerAvailableNow;
import org.apache.spark.sql.execution.datasources.v2.python.PythonStreamingInputPartition;
import org.apache.spark.sql.execution.datasources.v2.python.PythonStreamingSourceReadLimit;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Reads the micro-batches of a streaming query in the JVM.
 *
 * <p>The Python stream decides offsets and limits, so a checkpoint has the same form whoever reads. Its plan of
 * a batch begins with a partition that describes the batch for this reader. (Python: MpbrokerStreamReader.)
 */
final class LogStream
    implements MicroBatchStream, SupportsTriggerAvailableNow, SupportsRealTimeMode, ReportsSourceMetrics {
  /**
   * Asks Python for the end offsets at once. With any other limit Python waits briefly for new records.
   *
   * <p>Python: source.py.
   */
  private static final ReadLimit AT_ONCE =
      new PythonStreamingSourceReadLimit("{\"_type\": \"ReadMaxRows\", \"max_rows\": 0}");

  private static final Logger LOG = LoggerFactory.getLogger("mpbroker.spark");

  private final SupportsTriggerAvailableNow python;
  private final MicroBatchStream pythonBatches;
  private final StructType schema;
  private final CaseInsensitiveStringMap options;
  private final Checkpoint checkpoint;
  private Offset latest;
  private Plan plan;
  private boolean isRealTime;

  LogStream(
      MicroBatchStream python, StructType schema, CaseInsensitiveStringMap options, Checkpoint checkpoint) {
    this.python = (SupportsTriggerAvailableNow) python;
    this.pythonBatches = python;
    this.schema = schema;
    this.options = options;
    this.checkpoint = checkpoint;
  }

  /** Holds the tasks of a batch. {@code rules} is null, and {@code readers} is Python's, if Python reads it. */
  private record Plan(
      String start, String end, InputPartition[] tasks, Rules rules, PartitionReaderFactory readers) {}

  @Override
  public Offset initialOffset() {
    // The first batch of the real-time trigger is empty, and has the start of the query as its end.
    return isRealTime
        ? checkpoint.end(0).map(this::deserializeOffset).orElseGet(python::initialOffset)
        : python.initialOffset();
  }

  @Override
  public Offset deserializeOffset(String json) {
    return python.deserializeOffset(json);
  }

  @Override
  public ReadLimit getDefaultReadLimit() {
    return python.getDefaultReadLimit();
  }

  @Override
  public void prepareForTriggerAvailableNow() {
    python.prepareForTriggerAvailableNow();
  }

  @Override
  public Offset latestOffset() {
    throw new UnsupportedOperationException("latestOffset(Offset, ReadLimit) is called instead");
  }

  @Override
  public Offset latestOffset(Offset start, ReadLimit limit) {
    if (isRealTime) {
      latest = python.latestOffset(start, AT_ONCE);
      return latest;
    }
    return python.latestOffset(start, limit);
  }

  @Override
  public Offset reportLatestOffset() {
    Offset found = python.reportLatestOffset();
    latest = found == null ? latest : found;
    return latest;
  }

  /** Returns the lag behind the latest offsets in the form of Kafka's source. (Spark: KafkaMicroBatchStream.) */
  @Override
  public Map<String, String> metrics(Optional<Offset> consumed) {
    if (consumed.isEmpty()) {
      return Map.of();
    }
    Offset now = isRealTime ? latestAfter(consumed.get()) : latest;
    return now == null ? Map.of() : Progress.lag(consumed.get().json(), now.json());
  }

  /** Asks for the latest offset again: a batch of the real-time trigger reads beyond the one that it began with. */
  private Offset latestAfter(Offset consumed) {
    Offset[] found = {latest};
    unlessStopped(() -> found[0] = python.latestOffset(consumed, AT_ONCE));
    return found[0];
  }

  /** Plans a batch. Spark may ask more than once. */
  @Override
  public InputPartition[] planInputPartitions(Offset start, Offset end) {
    if (plan == null || !plan.start().equals(start.json()) || !plan.end().equals(end.json())) {
      plan = planOf(start, end);
    }
    return plan.tasks();
  }

  @Override
  public void prepareForRealTimeMode() {
    RealTime.check(options);
    isRealTime = true;
  }

  /** Plans a batch of the real-time trigger, whose tasks follow their partitions until Spark ends the batch. */
  @Override
  public InputPartition[] planInputPartitions(Offset start) {
    Rules rules = planOf(start, start).rules();
    RealTime.check(rules);
    try {
      // Spark writes the offsets of such a batch when it ends, minutes later. So the first one ends at once.
      boolean isFirst = checkpoint.isNew();
      InputPartition[] tasks = RealTime.plan(start.json(), latest.json(), rules, isFirst);
      plan = new Plan(start.json(), "", tasks, rules, null);
      return tasks;
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
  }

  @Override
  public Offset mergeOffsets(PartitionOffset[] ends) {
    return deserializeOffset(RealTime.merged(ends));
  }

  private Plan planOf(Offset start, Offset end) {
    InputPartition[] found = pythonBatches.planInputPartitions(start, end);
    Manifest manifest = described(found[0]);
    if (manifest.declined() == null) {
      return new Plan(
          start.json(), end.json(), manifest.tasks().toArray(new InputPartition[0]), manifest.rules(), null);
    }
    Failures.reportPython(manifest.declined());
    InputPartition[] theirs = Arrays.copyOfRange(found, 1, found.length);
    return new Plan(start.json(), end.json(), theirs, null, pythonBatches.createReaderFactory());
  }

  private static Manifest described(InputPartition first) {
    try {
      byte[] pickled = ((PythonStreamingInputPartition) first).pickedPartition();
      return Manifest.parse((byte[]) ((ClassDict) new Unpickler().loads(pickled)).get("value"));
    } catch (IOException error) {
      throw new IllegalStateException(error);
    }
  }

  /** Returns the factory of readers for the batch that was planned last. */
  @Override
  public PartitionReaderFactory createReaderFactory() {
    if (isRealTime) {
      return new RealTime.Readers(plan.rules(), schema);
    }
    return plan.readers() != null ? plan.readers() : LogScan.readers(plan.rules(), schema);
  }

  /** Commits the offset to the consumer group, if the query has one. */
  @Override
  public void commit(Offset end) {
    if (options.containsKey("commitGroupId")) {
      unlessStopped(() -> python.commit(end));
    }
  }

  /** Ends the run. Spark does not commit the last batch of a run to its source, so this does if it was finished. */
  @Override
  public void stop() {
    try {
      if (options.containsKey("commitGroupId")) {
        checkpoint.committed().map(this::deserializeOffset).ifPresent(this::commit);
      }
    } finally {
      python.stop();
    }
  }

  /**
   * Calls Python.
   *
   * <p>To stop a query, Spark interrupts the call in progress, which closes the connection to Python. Later calls do
   * nothing.
   */
  private static void unlessStopped(Runnable call) {
    try {
      call.run();
    } catch (Exception error) {
      if (!(error instanceof ClosedChannelException)) {
        throw error;
      }
      LOG.debug("The query was stopped", error);
    }
  }

  @Override
  public String toString() {
    return Progress.describe(options);
  }
}
