package io.mpbroker.spark;

import io.mpbroker.spark.Failures.Malformed;
import java.nio.ByteBuffer;
import java.util.HashSet;
import java.util.Set;

/**
 * Which producers wrote records that were handed out since the last marker of theirs.
 *
 * <p>An abort marker behind such records is an error: the index of aborted transactions has missed one.
 */
final class OpenTransactions {
  private static final int ABORT = 0;
  private static final int COMMIT = 1;
  private static final int KEY_BYTES = 4;

  private final LogRange range;
  private final Set<Long> handedOut = new HashSet<>();

  OpenTransactions(LogRange range) {
    this.range = range;
  }

  /** Whether {@link #see} wants to know of the batch, and of a marker its bytes. */
  boolean concerns(BatchHeader header) {
    return header.isTransactional() && range.aborted().areComplete();
  }

  /** Of a batch that has records for readers of the range. */
  void handOut(BatchHeader header) {
    if (header.count() > 0) {
      handedOut.add(header.producerId());
    }
  }

  /** Of a control batch, which the buffer holds. Throws Malformed if it aborts what was handed out. */
  void end(BatchHeader header, ByteBuffer batch) throws Malformed {
    int kind = kind(header, batch);
    if (kind == ABORT && handedOut.contains(header.producerId())) {
      throw new Malformed(
          "this marker says that a transaction of producer " + header.producerId()
              + " was aborted, which its index of aborted transactions does not know");
    }
    if (kind == ABORT || kind == COMMIT) {
      handedOut.remove(header.producerId());
    }
  }

  /** The type in the key of the marker (Kafka: ControlRecordType); -1 if the cleaner has emptied it. */
  private static int kind(BatchHeader header, ByteBuffer batch) {
    if (header.codec() != 0 || header.count() == 0) {
      return -1;
    }
    ByteBuffer record = batch.slice(BatchHeader.BYTES, header.length() - BatchHeader.BYTES);
    skipNumber(record); // its length
    skip(record, 1); // its attributes
    skipNumber(record); // the deltas of its timestamp
    skipNumber(record); // and offset
    int keyBytes = record.hasRemaining() ? record.get() >> 1 : 0;
    boolean isWhole = keyBytes >= KEY_BYTES && keyBytes <= record.remaining();
    return isWhole ? record.getShort(record.position() + 2) : -1;
  }

  private static void skipNumber(ByteBuffer record) {
    while (record.hasRemaining() && record.get() < 0) {
      // Another byte of the number follows.
    }
  }

  private static void skip(ByteBuffer record, int bytes) {
    record.position(Math.min(record.position() + bytes, record.limit()));
  }
}
