package io.mpbroker.spark;

import io.mpbroker.spark.Failures.Malformed;
import java.io.IOException;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/** Reads the records of a range as columnar batches. A batch is valid until the next one is read. */
final class RecordReader implements PartitionReader<ColumnarBatch> {
  /** The most unpacked bytes of one columnar batch. A larger log batch is not divided. */
  private static final long UNPACKED_BYTES = 16 << 20;

  private final LogRange range;
  private final BatchCursor cursor;
  private final Columns columns;
  private final RecordDecoder decoder;
  private final Codecs codecs = new Codecs();
  private final Arena arena = new Arena();
  private final long limit;
  private BatchHeader kept;
  private ColumnarBatch batch;
  private long seen;
  private long bytes;

  /** Reads the columns of the schema, and ends after about `limit` rows. */
  RecordReader(LogRange range, Manifest.Rules rules, StructType schema, long limit) throws IOException {
    this(range, new BatchCursor(range, rules, Pieces.of(range, rules)), schema, limit);
  }

  RecordReader(LogRange range, BatchCursor cursor, StructType schema, long limit) {
    this.range = range;
    this.limit = limit;
    this.cursor = cursor;
    columns = new Columns(schema, range);
    decoder = new RecordDecoder(columns, range.end());
  }

  @Override
  public boolean next() throws IOException {
    arena.reset();
    columns.reset();
    int rows = 0;
    // A log batch may have no record of the range, but a columnar batch must not be empty.
    while (rows == 0 && seen < limit) {
      rows = fill();
      if (rows == 0 && cursor.isAtEnd()) {
        return false;
      }
    }
    if (rows == 0) {
      return false;
    }
    seen += rows;
    batch = columns.finish(rows);
    return true;
  }

  /** Decodes log batches until the columnar batch is large enough or the window has to move. */
  private int fill() throws IOException {
    int rows = 0;
    while (seen + rows < limit) {
      BatchHeader header = kept != null ? kept : cursor.next(rows > 0);
      kept = null;
      if (header == null) {
        break;
      }
      if (rows > 0 && (rows + (long) header.count() > Columns.ROWS || arena.total() > UNPACKED_BYTES)) {
        kept = header;
        break;
      }
      rows = take(header, rows);
    }
    return rows;
  }

  private int take(BatchHeader header, int rows) {
    bytes += header.length();
    long low = cursor.firstOffset();
    boolean isWhole = range.holds(header) && header.baseOffset() >= low;
    if (columns.areOfThePartition() && header.isFull() && isWhole) {
      // The header has the number of rows, and they are alike.
      return rows + header.count();
    }
    try {
      int unpacked = header.length() - BatchHeader.BYTES;
      long address = cursor.address();
      if (header.codec() != 0 && unpacked > 0) {
        codecs.unpack(header.codec(), cursor.records());
        unpacked = codecs.size();
        address = arena.add(codecs.bytes(), unpacked);
      }
      return decoder.decode(header, address, unpacked, low, rows);
    } catch (Malformed error) {
      throw cursor.corrupt(error.getMessage());
    }
  }

  @Override
  public ColumnarBatch get() {
    return batch;
  }

  /** Returns the size of the log batches that were read. */
  long bytes() {
    return bytes;
  }

  @Override
  public CustomTaskMetric[] currentMetricsValues() {
    return new CustomTaskMetric[] {
      new ReadMetrics.Value(ReadMetrics.Bytes.NAME, bytes), new ReadMetrics.Value(cursor.metric(), seen)
    };
  }

  @Override
  public void close() throws IOException {
    columns.close();
    arena.close();
    cursor.close();
  }
}
