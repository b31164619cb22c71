package io.mpbroker.spark;

import io.mpbroker.spark.BucketFiles.Segment;
import io.mpbroker.spark.Failures.Malformed;
import java.io.IOException;
import java.nio.ByteBuffer;

/** Looks positions up in the offset index of a segment in a bucket (Kafka: OffsetIndex). */
final class BucketIndex {
  private static final int ENTRY_BYTES = 8;

  private final Bucket bucket;
  private final Segment segment;
  private final ByteBuffer entries;

  BucketIndex(Bucket bucket, Segment segment) throws IOException {
    this.bucket = bucket;
    this.segment = segment;
    entries = ByteBuffer.wrap(bucket.read(segment.offsetIndex(), 0, (int) Segment.bytes(segment.offsetIndex())));
  }

  /**
   * Returns the position of a batch at or before the offset; 0 if the index does not know one.
   *
   * <p>An entry is believed if the log has that batch there.
   */
  long floor(long offset) throws IOException {
    int number = countTo(offset) - 1;
    long position = number < 0 ? 0 : position(number);
    if (position <= 0 || position + BatchHeader.BYTES > segment.bytes()) {
      return 0;
    }
    try {
      ByteBuffer header = ByteBuffer.wrap(bucket.read(segment.log(), position, BatchHeader.BYTES));
      return BatchHeader.read(header, 0).baseOffset() <= offset(number) ? position : 0;
    } catch (Malformed error) {
      return 0;
    }
  }

  /** Returns a position behind all batches below the offset, as the index has it; at most the segment's end. */
  long behind(long offset) {
    // The first entry of a batch that reaches the last offset is of that batch, or of one behind it.
    int number = countTo(offset - 2) + 1;
    boolean isKnown = number < entries.limit() / ENTRY_BYTES && position(number) > 0;
    return isKnown ? Math.min(position(number), segment.bytes()) : segment.bytes();
  }

  /** Returns the number of entries up to an offset. */
  private int countTo(long offset) {
    int low = 0;
    int high = entries.limit() / ENTRY_BYTES;
    while (low < high) {
      int middle = (low + high) >>> 1;
      // Zeros are the unused tail.
      if (entries.getLong(middle * ENTRY_BYTES) == 0 || offset(middle) > offset) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return low;
  }

  private long offset(int number) {
    return segment.base() + entries.getInt(number * ENTRY_BYTES);
  }

  private int position(int number) {
    return entries.getInt(number * ENTRY_BYTES + 4);
  }
}
