package io.mpbroker.spark;

import io.mpbroker.spark.Failures.CorruptLog;
import io.mpbroker.spark.Failures.SourceUnavailable;
import java.io.IOException;
import java.nio.ByteBuffer;
import org.apache.spark.storage.StorageUtils;
import sun.nio.ch.DirectBuffer;

/**
 * Reads the pieces of a range from segment files, through a window of bounded size.
 *
 * <p>The window has the bytes [from, to) of a file, in memory that is reused for the next window. The bytes are
 * read and not mapped. So a bad disk or a shorter file causes an exception, where a fault in a mapping might end
 * the process. This costs no more CPU as long as the bytes fit the cache of a core.
 */
final class FilePieces implements Pieces {
  /** The usual size of the window, which fits the second-level cache of a core. Only a larger batch needs more. */
  private static final int WINDOW_BYTES = 512 << 10;

  private final LogRange range;
  private final SegmentFiles files;
  private SegmentFiles.Opened file;
  private ByteBuffer window = ByteBuffer.allocateDirect(WINDOW_BYTES);
  private long from;
  private long to;

  FilePieces(LogRange range, Manifest.Rules rules) throws IOException {
    this.range = range;
    files = new SegmentFiles(range, rules);
  }

  @Override
  public boolean next() throws IOException {
    to = from;
    file = files.next();
    return file != null;
  }

  @Override
  public long firstOffset() {
    return range.start();
  }

  @Override
  public long start() {
    return file.position();
  }

  @Override
  public long end() {
    return file.end();
  }

  @Override
  public boolean holds(long position, long length) {
    return position >= from && position + length <= to;
  }

  /**
   * Moves the window, and reads as many bytes as fit.
   *
   * <p>Throws CorruptLog if the file no longer has them, SourceUnavailable if its disk fails.
   */
  @Override
  public void move(long position, int least) throws IOException {
    int wanted = (int) Math.min(file.end() - position, Math.max(least, WINDOW_BYTES));
    if (wanted > window.capacity()) {
      to = from;
      StorageUtils.dispose(window);
      window = ByteBuffer.allocateDirect(wanted);
    }
    keep(position);
    window.limit(wanted);
    from = position;
    to = position;
    try {
      while (window.hasRemaining()) {
        if (file.channel().read(window, position + window.position()) < 0) {
          throw new CorruptLog(
              file.path() + " became shorter than " + (position + wanted) + " bytes while it was read");
        }
      }
    } catch (IOException error) {
      throw new SourceUnavailable(
          file.path() + ": bytes " + position + " to " + (position + wanted) + " cannot be read, in " + range
              + ": " + error.getMessage() + " (see the kernel's log)",
          error);
    }
    to = position + wanted;
  }

  /** Moves the window's bytes from the position on to its front. */
  private void keep(long position) {
    window.clear();
    if (position >= from && position < to) {
      window.position((int) (position - from)).limit((int) (to - from));
      window.compact();
    }
  }

  @Override
  public long address(long position) {
    return ((DirectBuffer) window).address() + (position - from);
  }

  @Override
  public ByteBuffer slice(long position, int length) {
    return window.slice((int) (position - from), length);
  }

  @Override
  public String metric() {
    return ReadMetrics.RecordsOfFiles.NAME;
  }

  @Override
  public AbortedRanges aborted() {
    return range.aborted();
  }

  @Override
  public CorruptLog corrupt(long position, String reason) {
    return new CorruptLog(file.path() + " is damaged at position " + position + ": " + reason + ", in " + range);
  }

  @Override
  public void close() throws IOException {
    to = from;
    StorageUtils.dispose(window);
    files.close();
  }
}
