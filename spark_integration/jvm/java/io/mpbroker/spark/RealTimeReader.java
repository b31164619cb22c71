package io.mpbroker.spark;

import io.mpbroker.spark.RealTime.Reached;
import java.io.IOException;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.streaming.PartitionOffset;
import org.apache.spark.sql.connector.read.streaming.SupportsRealTimeRead;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/** Returns the records of a partition as they are written, until Spark ends the batch. */
final class RealTimeReader implements SupportsRealTimeRead<InternalRow> {
  private static final String OFFSET = "offset";

  private final LogRange range;
  private final FetchedPieces pieces;
  private final RecordReader records;
  private final int offsetColumn;
  private ColumnarBatch batch;
  /** The number of rows of the batch that were returned. */
  private int returned;
  /** The offset after all that was returned. */
  private long reached;

  RealTimeReader(LogRange range, Manifest.Rules rules, StructType schema) throws IOException {
    this.range = range;
    reached = range.start();
    // Spark reads columns by their place, so one more does no harm at the end.
    StructType read =
        schema.getFieldIndex(OFFSET).isDefined() ? schema : schema.add(OFFSET, DataTypes.LongType);
    offsetColumn = read.fieldIndex(OFFSET);
    pieces = new FetchedPieces(range, rules);
    records = new RecordReader(range, new BatchCursor(range, rules, pieces), read, Long.MAX_VALUE);
  }

  @Override
  public RecordStatus nextWithTimeout(Long startTimeMs, Long timeoutMs) throws IOException {
    if (batch == null || returned == batch.numRows()) {
      pieces.follow(timeoutMs);
      batch = records.next() ? records.get() : null;
      returned = 0;
    }
    if (batch == null) {
      // Markers and aborted records at the end are no rows.
      reached = pieces.nextOffset();
      return RecordStatus.newStatusWithoutArrivalTime(false);
    }
    reached = batch.column(offsetColumn).getLong(returned) + 1;
    returned++;
    return RecordStatus.newStatusWithoutArrivalTime(true);
  }

  @Override
  public boolean next() {
    throw new UnsupportedOperationException("nextWithTimeout is called instead");
  }

  @Override
  public InternalRow get() {
    return batch.getRow(returned - 1);
  }

  @Override
  public PartitionOffset getOffset() {
    return new Reached(range.topic(), range.partition(), range.topicId(), reached);
  }

  @Override
  public CustomTaskMetric[] currentMetricsValues() {
    return records.currentMetricsValues();
  }

  @Override
  public void close() throws IOException {
    records.close();
  }
}
