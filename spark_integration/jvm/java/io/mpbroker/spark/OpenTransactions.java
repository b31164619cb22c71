package io.mpbroker.spark;

import io.mpbroker.spark.Failures.Malformed;
import java.nio.ByteBuffer;
import java.util.HashSet;
import java.util.Set;

/**
 * Remembers the producers whose records were handed out since their last marker.
 *
 * <p>An abort marker after such records is an error: the index of aborted transactions lacks their transaction.
 */
final class OpenTransactions {
  private static final int ABORT = 0;
  private static final int COMMIT = 1;
  private static final int KEY_BYTES = 4;

  private final Set<Long> handedOut = new HashSet<>();

  /** Returns true if the batch has to be reported: records by {@link #handOut}, a marker by {@link #end}. */
  boolean concerns(BatchHeader header, AbortedRanges aborted) {
    return header.isTransactional() && aborted.areComplete();
  }

  /** Notes a batch that has records for readers of the range. */
  void handOut(BatchHeader header) {
    if (header.count() > 0) {
      handedOut.add(header.producerId());
    }
  }

  /**
   * Notes the control batch in the buffer. Throws Malformed if it aborts records that were handed out. If it
   * ends a known transaction it does not: compaction has removed the marker of those records.
   */
  void end(BatchHeader header, ByteBuffer batch, AbortedRanges aborted) throws Malformed {
    int kind = kind(header, batch);
    boolean endsNone = !aborted.hold(header.producerId(), header.baseOffset());
    if (kind == ABORT && endsNone && handedOut.contains(header.producerId())) {
      throw new Malformed(
          "the marker aborts a transaction of producer " + header.producerId()
              + " that no .txnindex entry names: run mpbroker log verify");
    }
    if (kind == ABORT || kind == COMMIT) {
      handedOut.remove(header.producerId());
    }
  }

  /** Returns the type in the marker's key (Kafka: ControlRecordType); -1 if the cleaner has emptied it. */
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
