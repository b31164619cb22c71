package io.mpbroker.spark;

import io.mpbroker.spark.Failures.CorruptLog;
import java.io.Closeable;
import java.io.IOException;
import java.nio.ByteBuffer;

/**
 * Gives the bytes of a range in pieces of whole batches: segment files, windows of a bucket, or brokers' answers.
 *
 * <p>Positions count within the current piece. The part of it that is in memory is its window.
 */
interface Pieces extends Closeable {
  /** Opens the objects of the range if the plan names any, or its files if this host has them; else fetches it. */
  static Pieces of(LogRange range, Manifest.Rules rules) throws IOException {
    if (range.bucket() != null) {
      return new BucketPieces(range, rules);
    }
    return SegmentFiles.areHere(range, rules) ? new FilePieces(range, rules) : new FetchedPieces(range, rules);
  }

  /** Moves to the next piece. Returns false after the last one. */
  boolean next() throws IOException;

  /** Returns the piece's first wanted offset. Records before it were reported as lost. */
  long firstOffset();

  /** Returns the position of the piece's first batch. */
  long start();

  /** Returns the position after the piece's last batch. */
  long end();

  /** Returns true if the window has these bytes. */
  boolean holds(long position, long length);

  /** Moves the window to a position, where it has at least `least` bytes. */
  void move(long position, int least) throws IOException;

  /** Returns the address of a position in the window. */
  long address(long position);

  /** Returns bytes of the window. */
  ByteBuffer slice(long position, int length);

  /** Returns the metric that counts the records. (ReadMetrics.) */
  String metric();

  /** Returns the aborted transactions that have records in the piece. */
  AbortedRanges aborted();

  /** Returns an error that says where the damage is. */
  CorruptLog corrupt(long position, String reason);
}
