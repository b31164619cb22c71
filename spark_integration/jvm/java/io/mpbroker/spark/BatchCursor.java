package io.mpbroker.spark;

import io.mpbroker.spark.Failures.CorruptLog;
import io.mpbroker.spark.Failures.Malformed;
import java.io.Closeable;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.zip.CRC32C;

/** Walks over the batches of a range that have records for the reader, in windows of the files. */
final class BatchCursor implements Closeable {
  private final LogRange range;
  private final Manifest.Rules rules;
  private final SegmentFiles files;
  private final CRC32C crc = new CRC32C();
  private final Window window;
  private final OpenTransactions transactions;
  private SegmentFiles.Opened file;
  private long position;
  private BatchHeader header;

  BatchCursor(LogRange range, Manifest.Rules rules) throws IOException {
    this.range = range;
    this.rules = rules;
    files = new SegmentFiles(range, rules);
    window = new Window(range);
    transactions = new OpenTransactions(range);
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
      if (file == null || position >= file.end()) {
        if (holds || !open()) {
          return null;
        }
      }
      if (!reach(BatchHeader.BYTES, holds)) {
        return null;
      }
      BatchHeader found = read();
      if (found.baseOffset() >= range.end()) {
        position = file.end();
      } else if (found.baseOffset() < range.start() && found.lastOffset() < range.start()) {
        position += found.length();
      } else if (!reach(found.length(), holds)) {
        return null;
      } else {
        // The CRC is checked first, so that a flipped bit cannot hide a batch.
        check(found);
        boolean hidden = found.isHidden(range);
        if (transactions.concerns(found)) {
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

  boolean isAtEnd() {
    return file == null;
  }

  /** Returns the address of the batch's records. */
  long address() {
    return window.address(position + BatchHeader.BYTES);
  }

  /** Returns the records of the batch, as they are stored. */
  ByteBuffer records() {
    return window.slice(position + BatchHeader.BYTES, header.length() - BatchHeader.BYTES);
  }

  /** Returns an error that names the batch's file and position. */
  CorruptLog corrupt(String reason) {
    return new CorruptLog(
        file.path() + " is damaged at position " + position + ": " + reason + ", in " + range);
  }

  @Override
  public void close() throws IOException {
    window.close();
    files.close();
  }

  private boolean open() throws IOException {
    window.clear();
    file = files.next();
    if (file != null) {
      position = file.position();
    }
    return file != null;
  }

  /** Returns true if the window has that many bytes at the position. Moves it for this unless `holds`. */
  private boolean reach(int bytes, boolean holds) throws IOException {
    if (window.holds(position, bytes)) {
      return true;
    }
    if (holds) {
      return false;
    }
    long end = file.end();
    if (position + bytes > end) {
      throw corrupt(BatchHeader.reachesBeyond(end));
    }
    window.move(file, position, bytes, end);
    return true;
  }

  private BatchHeader read() {
    try {
      return BatchHeader.read(window.slice(position, BatchHeader.BYTES), 0);
    } catch (Malformed error) {
      throw corrupt(error.getMessage());
    }
  }

  private void follow(BatchHeader found, boolean hidden) {
    try {
      if (!hidden) {
        transactions.handOut(found);
      } else if (found.isControl()) {
        transactions.end(found, window.slice(position, found.length()));
      }
    } catch (Malformed error) {
      throw corrupt(error.getMessage());
    }
  }

  private void check(BatchHeader found) {
    if (rules.checkCrcs() && !found.matches(window.slice(position, found.length()), crc)) {
      throw corrupt(BatchHeader.BAD_CRC);
    }
  }
}
