package io.mpbroker.spark;

import io.mpbroker.spark.Failures.CorruptLog;
import io.mpbroker.spark.Failures.Malformed;
import java.io.Closeable;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.zip.CRC32C;

/** Walks over the batches of a range that have records for the reader. */
final class BatchCursor implements Closeable {
  private final LogRange range;
  private final Manifest.Rules rules;
  private final Pieces pieces;
  private final CRC32C crc = new CRC32C();
  private final OpenTransactions transactions = new OpenTransactions();
  private boolean ended;
  private long position;
  /** Where the batches of the current piece end. */
  private long end;
  private BatchHeader header;

  BatchCursor(LogRange range, Manifest.Rules rules, Pieces pieces) {
    this.range = range;
    this.rules = rules;
    this.pieces = pieces;
  }

  /**
   * Finds the next batch that has records of the range. Returns null at the end.
   *
   * <p>If `holds`, addresses of the window are in use. Then this returns null, with `isAtEnd` false, where
   * the window would have to move: the caller hands its rows on and asks again.
   */
  BatchHeader next(boolean holds) throws IOException {
    if (header != null) {
      position += header.length();
      header = null;
    }
    while (true) {
      if (position >= end) {
        if (holds || !open()) {
          return null;
        }
      }
      if (!reach(BatchHeader.BYTES, holds)) {
        return null;
      }
      BatchHeader found = read();
      if (found.baseOffset() >= range.end()) {
        position = end;
      } else if (found.baseOffset() < range.start() && found.lastOffset() < range.start()) {
        position += found.length();
      } else if (!reach(found.length(), holds)) {
        return null;
      } else {
        // The CRC is checked first, so that a flipped bit cannot hide a batch.
        check(found);
        boolean hidden = found.isHidden(pieces.aborted());
        if (transactions.concerns(found, pieces.aborted())) {
          follow(found, hidden);
        }
        if (!hidden) {
          header = found;
          return found;
        }
        position += found.length();
      }
    }
  }

  String metric() {
    return pieces.metric();
  }

  /** Returns the batch's first wanted offset. */
  long firstOffset() {
    return pieces.firstOffset();
  }

  boolean isAtEnd() {
    return ended;
  }

  /** Returns the address of the batch's records. */
  long address() {
    return pieces.address(position + BatchHeader.BYTES);
  }

  /** Returns the records of the batch, as they are stored. */
  ByteBuffer records() {
    return pieces.slice(position + BatchHeader.BYTES, header.length() - BatchHeader.BYTES);
  }

  /** Returns an error that says where the batch is. */
  CorruptLog corrupt(String reason) {
    return pieces.corrupt(position, reason);
  }

  @Override
  public void close() throws IOException {
    pieces.close();
  }

  private boolean open() throws IOException {
    ended = !pieces.next();
    if (!ended) {
      position = pieces.start();
      end = pieces.end();
    }
    return !ended;
  }

  /** Returns true if the window has that many bytes at the position. Moves it for this unless `holds`. */
  private boolean reach(int bytes, boolean holds) throws IOException {
    if (pieces.holds(position, bytes)) {
      return true;
    }
    if (holds) {
      return false;
    }
    if (position + bytes > end) {
      throw corrupt(BatchHeader.reachesBeyond(end));
    }
    pieces.move(position, bytes);
    return true;
  }

  private BatchHeader read() {
    try {
      return BatchHeader.read(pieces.slice(position, BatchHeader.BYTES), 0);
    } catch (Malformed error) {
      throw corrupt(error.getMessage());
    }
  }

  private void follow(BatchHeader found, boolean hidden) {
    try {
      if (!hidden) {
        transactions.handOut(found);
      } else if (found.isControl()) {
        transactions.end(found, pieces.slice(position, found.length()), pieces.aborted());
      }
    } catch (Malformed error) {
      throw corrupt(error.getMessage());
    }
  }

  private void check(BatchHeader found) {
    if (rules.checkCrcs() && !found.matches(pieces.slice(position, found.length()), crc)) {
      throw corrupt(BatchHeader.BAD_CRC);
    }
  }
}
