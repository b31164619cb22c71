package io.mpbroker.spark;

import io.mpbroker.spark.Failures.Malformed;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.zip.CRC32C;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.types.StructType;

/**
 * Counts the records of a range, and returns one row with their number.
 *
 * <p>The header of a batch has the number of its records. If the whole batch is in the range and has a record
 * for each of its offsets, nothing else of it is read, and its CRC is not checked. Other batches, which are
 * cut by an edge of the range or compacted, are read as for any query, and so is a range that is fetched.
 */
final class CountReader implements PartitionReader<InternalRow> {
  private final LogRange range;
  private final Manifest.Rules rules;
  private final CRC32C crc = new CRC32C();
  private final OpenTransactions transactions = new OpenTransactions();
  private boolean done;
  private long records;

  CountReader(LogRange range, Manifest.Rules rules) {
    this.range = range;
    this.rules = rules;
  }

  @Override
  public boolean next() throws IOException {
    if (done) {
      return false;
    }
    done = true;
    if (range.start() >= range.end()) {
      return true;
    }
    if (!SegmentFiles.areHere(range, rules)) {
      walk(range);
      return true;
    }
    try (SegmentFiles files = new SegmentFiles(range, rules)) {
      for (var file = files.next(); file != null; file = files.next()) {
        count(file);
      }
    }
    return true;
  }

  private void count(SegmentFiles.Opened file) throws IOException {
    HeaderReader headers = new HeaderReader(file.channel(), file.path(), file.end(), range);
    List<LogRange> unclear = new ArrayList<>();
    long unclearFrom = -1;
    long nextOffset = -1;
    for (long position = file.position(); position < file.end(); ) {
      BatchHeader header = headers.at(position);
      if (header.baseOffset() >= range.end()) {
        break;
      }
      if (position + header.length() > file.end()) {
        throw headers.corrupt(position, BatchHeader.reachesBeyond(file.end()));
      }
      boolean hidden = header.isHidden(range.aborted());
      boolean within = range.holds(header);
      if (!hidden && header.lastOffset() >= range.start() && transactions.concerns(header, range.aborted())) {
        transactions.handOut(header);
      }
      if (within && hidden) {
        check(header, headers, position);
      } else if (within && header.isFull()) {
        records += header.count();
        if (unclearFrom >= 0) {
          unclear.add(range.within(unclearFrom, header.baseOffset()));
          unclearFrom = -1;
        }
      } else if (unclearFrom < 0) {
        // Unclear neighbours become one range, so that a compacted segment is read in one go.
        unclearFrom = header.baseOffset();
      }
      nextOffset = header.lastOffset() + 1;
      position += header.length();
    }
    if (unclearFrom >= 0) {
      unclear.add(range.within(unclearFrom, nextOffset));
    }
    for (LogRange one : unclear) {
      walk(one);
    }
  }

  /** Checks the CRC of a batch, so that a flipped bit cannot hide it, and notes a marker. */
  private void check(BatchHeader header, HeaderReader headers, long position) throws IOException {
    boolean isMarker = header.isControl() && transactions.concerns(header, range.aborted());
    if (!rules.checkCrcs() && !isMarker) {
      return;
    }
    ByteBuffer batch = headers.whole(position, header.length());
    if (rules.checkCrcs() && !header.matches(batch, crc)) {
      throw headers.corrupt(position, BatchHeader.BAD_CRC);
    }
    if (!isMarker) {
      return;
    }
    try {
      transactions.end(header, batch, range.aborted());
    } catch (Malformed error) {
      throw headers.corrupt(position, error.getMessage());
    }
  }

  private void walk(LogRange only) throws IOException {
    try (RecordReader reader = new RecordReader(only, rules, new StructType(), Long.MAX_VALUE)) {
      while (reader.next()) {
        records += reader.get().numRows();
      }
    }
  }

  @Override
  public InternalRow get() {
    return new GenericInternalRow(new Object[] {records});
  }

  @Override
  public void close() {}
}
