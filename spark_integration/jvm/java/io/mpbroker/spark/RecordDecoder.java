package io.mpbroker.spark;

import io.mpbroker.spark.Failures.Malformed;
import org.apache.spark.unsafe.Platform;

/**
 * Decodes the records of one batch after the other into columns (Kafka: DefaultRecord).
 *
 * <p>It works on addresses, and never reads outside of the bytes that it is given, whatever they contain.
 */
final class RecordDecoder {
  /** The size of a record of length, attributes, four numbers and a count of headers, a byte each. */
  static final int SMALLEST_RECORD_BYTES = 7;

  private static final String BAD_FIELD = "a field of the record is malformed or reaches beyond its end";

  private final Columns columns;
  private final long high;
  private long at;
  private long stop;

  /** Decodes the records with offsets below `high`. */
  RecordDecoder(Columns columns, long high) {
    this.columns = columns;
    this.high = high;
  }

  /**
   * Appends the records at [address, address + bytes) with offsets from `low` on, the first as this row.
   *
   * <p>Returns the new number of rows.
   */
  int decode(BatchHeader header, long address, long bytes, long low, int row) throws Malformed {
    if (header.count() < 0 || header.count() > bytes / SMALLEST_RECORD_BYTES) {
      throw new Malformed("the record's length does not fit");
    }
    columns.reserve(row + header.count());
    long end = address + bytes;
    boolean stamped = header.hasAppendTime();
    at = address;
    for (int i = header.count(); i > 0; i--) {
      stop = end;
      long length = at < end ? number(5) : -1;
      if (length < SMALLEST_RECORD_BYTES - 1 || length > end - at) {
        throw new Malformed("the record's length does not fit");
      }
      stop = at + length;
      at++; // the attributes of a record are not used
      long timestampDelta = number(10);
      long offset = header.baseOffset() + number(5);
      boolean wanted = offset >= low && offset < high;
      bytes(wanted ? columns.key : null, row);
      bytes(wanted ? columns.value : null, row);
      headers(wanted, row);
      if (at != stop) {
        throw new Malformed("the record's fields end before its length");
      }
      if (wanted) {
        put(row, offset, stamped, stamped ? header.maxTimestamp() : header.baseTimestamp() + timestampDelta);
        row++;
      }
    }
    if (at != end) {
      throw new Malformed("bytes follow the last record");
    }
    return row;
  }

  private void put(int row, long offset, boolean stamped, long timestampMs) {
    if (columns.offset != null) {
      columns.offset.putLong(row, offset);
    }
    if (columns.timestamp != null) {
      columns.timestamp.putLong(row, microseconds(timestampMs));
    }
    if (columns.timestampType != null) {
      columns.timestampType.putInt(row, stamped ? 1 : 0);
    }
  }

  /** Reads a length and skips its bytes. */
  private void bytes(BytesVector column, int row) throws Malformed {
    long length = number(5);
    if (column != null) {
      column.put(row, at, (int) Math.max(length, -1));
    }
    skip(length);
  }

  private void headers(boolean wanted, int row) throws Malformed {
    long count = number(5);
    boolean kept = wanted && columns.headers != null;
    if (count == 0) {
      if (kept) {
        columns.headers.putNull(row);
      }
      return;
    }
    if (count < 0 || count > stop - at) {
      throw new Malformed("the record's headers are malformed");
    }
    if (kept) {
      columns.putHeaders(row, (int) count);
    }
    for (; count > 0; count--) {
      long keyBytes = number(5);
      long key = at;
      if (keyBytes < 0) {
        throw new Malformed("the record's headers are malformed");
      }
      skip(keyBytes);
      long valueBytes = number(5);
      long value = at;
      skip(valueBytes);
      if (kept) {
        columns.addHeader(key, (int) keyBytes, value, (int) valueBytes);
      }
    }
  }

  private void skip(long length) throws Malformed {
    if (length > stop - at) {
      throw new Malformed(BAD_FIELD);
    }
    if (length > 0) {
      at += length;
    }
  }

  /** Reads a varint (5 bytes at most) or varlong (10). Nearly all of them have one to three bytes. */
  private long number(int maxBytes) throws Malformed {
    if (at >= stop) {
      throw new Malformed(BAD_FIELD);
    }
    long raw = Platform.getByte(null, at++);
    if (raw < 0 && at < stop) {
      long next = Platform.getByte(null, at);
      if (next < 0) {
        return wideNumber(raw & 0x7f, maxBytes);
      }
      at++;
      raw = raw & 0x7f | next << 7;
    }
    if (raw < 0) {
      throw new Malformed(BAD_FIELD);
    }
    return raw >>> 1 ^ -(raw & 1);
  }

  private long wideNumber(long raw, int maxBytes) throws Malformed {
    for (int i = 1; i < maxBytes && at < stop; i++) {
      long next = Platform.getByte(null, at++);
      if (i == maxBytes - 1 && (next < 0 || next > (maxBytes == 5 ? 0x0f : 0x01))) {
        break;
      }
      raw |= (next & 0x7f) << 7 * i;
      if (next >= 0) {
        return raw >>> 1 ^ -(raw & 1);
      }
    }
    throw new Malformed(BAD_FIELD);
  }

  private static long microseconds(long ms) {
    if (Math.abs(ms) > Long.MAX_VALUE / 1000 || ms == Long.MIN_VALUE) {
      return ms < 0 ? Long.MIN_VALUE : Long.MAX_VALUE;
    }
    return ms * 1000;
  }
}
