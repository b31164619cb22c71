package io.mpbroker.spark;

import io.mpbroker.spark.Failures.Malformed;
import java.nio.ByteBuffer;
import java.util.zip.CRC32C;

/** Holds the header of a record batch of magic 2 (Kafka: DefaultRecordBatch); numbers are big-endian. */
record BatchHeader(
    long baseOffset,
    int length,
    int crc,
    int attributes,
    int lastOffsetDelta,
    long baseTimestamp,
    long maxTimestamp,
    long producerId,
    int count) {

  /** The size of the header. The records follow it, compressed as one stream if there is a codec. */
  static final int BYTES = 61;

  static final String BAD_CRC = "its CRC does not match";

  private static final int CRC_COVERS_FROM = 21;
  private static final int LENGTH_COUNTS_FROM = 12;
  private static final int SMALLEST_LENGTH = 14;
  private static final int CURRENT_MAGIC = 2;
  private static final int CODEC_MASK = 0x07;
  private static final int APPEND_TIME_BIT = 0x08;
  private static final int TRANSACTIONAL_BIT = 0x10;
  private static final int CONTROL_BIT = 0x20;

  /** Reads the header at an index of the buffer, which has at least BYTES there. */
  static BatchHeader read(ByteBuffer buffer, int at) throws Malformed {
    int counted = buffer.getInt(at + 8);
    if (counted < SMALLEST_LENGTH) {
      throw new Malformed("the length of the batch is smaller than its header");
    }
    int magic = buffer.get(at + 16);
    if (magic != CURRENT_MAGIC) {
      throw new Malformed("the batch has magic " + magic + ", only " + CURRENT_MAGIC + " can be read");
    }
    long length = (long) counted + LENGTH_COUNTS_FROM;
    if (length < BYTES || length > Integer.MAX_VALUE) {
      throw new Malformed("the length of the batch is smaller than its header");
    }
    return new BatchHeader(
        buffer.getLong(at),
        (int) length,
        buffer.getInt(at + 17),
        buffer.getShort(at + 21),
        buffer.getInt(at + 23),
        buffer.getLong(at + 27),
        buffer.getLong(at + 35),
        buffer.getLong(at + 43),
        buffer.getInt(at + 57));
  }

  static String reachesBeyond(long position) {
    return "the batch reaches beyond position " + position + ", where the readable part ends";
  }

  long lastOffset() {
    return baseOffset + lastOffsetDelta;
  }

  /** Returns true if the CRC fits the batch in the buffer. */
  boolean matches(ByteBuffer batch, CRC32C sum) {
    sum.reset();
    sum.update(batch.slice(CRC_COVERS_FROM, length - CRC_COVERS_FROM));
    return (int) sum.getValue() == crc;
  }

  /** Returns true if the batch has a record for each of its offsets. Compaction leaves fewer. */
  boolean isFull() {
    return count == lastOffsetDelta + 1 && count > 0;
  }

  int codec() {
    return attributes & CODEC_MASK;
  }

  boolean hasAppendTime() {
    return (attributes & APPEND_TIME_BIT) != 0;
  }

  boolean isControl() {
    return (attributes & CONTROL_BIT) != 0;
  }

  boolean isTransactional() {
    return (attributes & TRANSACTIONAL_BIT) != 0;
  }

  /** Returns true if readers get none of its records: a marker, or an aborted batch. */
  boolean isHidden(AbortedRanges aborted) {
    return isControl() || isTransactional() && aborted.hold(producerId, baseOffset);
  }
}
