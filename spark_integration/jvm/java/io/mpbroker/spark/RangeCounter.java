package io.mpbroker.spark;

import io.mpbroker.spark.Failures.Malformed;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.zip.CRC32C;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnVector;

/**
 * Counts the records of a range, and finds its first and last.
 *
 * <p>The header of a batch has the number of its records. If the whole batch is in the range and has a record
 * for each of its offsets, nothing else of it is read, and its CRC is not checked. Other batches, which are
 * cut by an edge of the range or compacted, are read as for any query, and so is a range that is fetched.
 */
final class RangeCounter {
  private static final StructType OFFSET = new StructType().add("offset", DataTypes.LongType);
  private static final long GROWTH = 16;

  private final LogRange range;
  private final Manifest.Rules rules;
  private final CRC32C crc = new CRC32C();
  private final OpenTransactions transactions = new OpenTransactions();
  private long records;
  private long first = -1;
  private long last = -1;
  private long bytes;

  private RangeCounter(LogRange range, Manifest.Rules rules) {
    this.range = range;
    this.rules = rules;
  }

  /** Counts the whole range. */
  static RangeCounter of(LogRange range, Manifest.Rules rules) throws IOException {
    RangeCounter counter = new RangeCounter(range, rules);
    if (range.start() >= range.end()) {
      return counter;
    }
    if (!SegmentFiles.areHere(range, rules)) {
      counter.walk(range);
      return counter;
    }
    try (SegmentFiles files = new SegmentFiles(range, rules)) {
      for (var file = files.next(); file != null; file = files.next()) {
        counter.count(file);
      }
    }
    return counter;
  }

  /**
   * Counts the beginning or the end of the range: a part with at least this many records, or all of it.
   *
   * <p>Offsets may have no records for readers, so this tries parts of growing size. A part at the end contains
   * the markers of its transactions, also of an aborted one that the index lacks.
   */
  static RangeCounter ofEdge(LogRange range, Manifest.Rules rules, long records, boolean atEnd)
      throws IOException {
    long size = range.end() - range.start();
    long offsets = Math.min(records, size);
    while (true) {
      long start = atEnd ? range.end() - offsets : range.start();
      RangeCounter counter = of(range.within(start, start + offsets), rules);
      if (counter.records >= records || offsets == size) {
        return counter;
      }
      offsets = offsets > size / GROWTH ? size : offsets * GROWTH;
    }
  }

  LogRange range() {
    return range;
  }

  long records() {
    return records;
  }

  /** Returns the offset of the first record; -1 without one. */
  long first() {
    return first;
  }

  /** Returns the offset of the last record; -1 without one. */
  long last() {
    return last;
  }

  /** Returns the number of bytes that were read. */
  long bytes() {
    return bytes;
  }

  private void add(long count, long from, long to) {
    records += count;
    first = first < 0 ? from : Math.min(first, from);
    last = Math.max(last, to);
  }

  private void count(SegmentFiles.Opened file) throws IOException {
    HeaderReader headers = new HeaderReader(file.channel(), file.path(), file.end(), range);
    List<LogRange> unclear = new ArrayList<>();
    long unclearFrom = -1;
    long nextOffset = -1;
    for (long position = file.position(); position < file.end(); ) {
      BatchHeader header = headers.at(position);
      bytes += BatchHeader.BYTES;
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
        add(header.count(), header.baseOffset(), header.lastOffset());
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
    bytes += header.length();
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
    try (RecordReader reader = new RecordReader(only, rules, OFFSET, Long.MAX_VALUE)) {
      while (reader.next()) {
        ColumnVector offsets = reader.get().column(0);
        int rows = reader.get().numRows();
        add(rows, offsets.getLong(0), offsets.getLong(rows - 1));
      }
      bytes += reader.bytes();
    }
  }
}
