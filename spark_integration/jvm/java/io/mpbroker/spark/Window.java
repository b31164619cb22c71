package io.mpbroker.spark;

import io.mpbroker.spark.Failures.CorruptLog;
import io.mpbroker.spark.Failures.SourceUnavailable;
import java.io.Closeable;
import java.io.IOException;
import java.nio.ByteBuffer;
import org.apache.spark.storage.StorageUtils;
import sun.nio.ch.DirectBuffer;

/**
 * A part of a segment file: its bytes [from, to), in memory that the next part takes again.
 *
 * <p>Read and not mapped: a bad disk or a shorter file is an exception here, where a fault in a mapping might
 * end the process. As long as what is read fits the cache of a core, this costs no more CPU.
 */
final class Window implements Closeable {
  /** Fits the second-level cache of a core. Only a larger batch needs more. */
  static final int BYTES = 512 << 10;

  private final LogRange range;
  private ByteBuffer bytes = ByteBuffer.allocateDirect(BYTES);
  private long from;
  private long to;

  Window(LogRange range) {
    this.range = range;
  }

  boolean holds(long position, long length) {
    return position >= from && position + length <= to;
  }

  /**
   * Moves to a position: at least so many bytes, and what fits of those before `end`.
   *
   * <p>Throws CorruptLog if the file does not have them any more, SourceUnavailable if its disk fails.
   */
  void move(SegmentFiles.Opened file, long position, int least, long end) throws IOException {
    int wanted = (int) Math.min(end - position, Math.max(least, BYTES));
    if (wanted > bytes.capacity()) {
      clear();
      StorageUtils.dispose(bytes);
      bytes = ByteBuffer.allocateDirect(wanted);
    }
    keep(position);
    bytes.limit(wanted);
    from = position;
    to = position;
    try {
      while (bytes.hasRemaining()) {
        if (file.channel().read(bytes, position + bytes.position()) < 0) {
          throw new CorruptLog(
              file.path() + " became shorter than " + (position + wanted) + " bytes while it was read");
        }
      }
    } catch (IOException error) {
      throw new SourceUnavailable(
          file.path() + ": bytes " + position + " to " + (position + wanted) + " cannot be read, in " + range
              + ": " + error.getMessage() + " (the kernel's log says more)",
          error);
    }
    to = position + wanted;
  }

  /** Forgets what it has: another file comes. */
  void clear() {
    to = from;
  }

  long address(long position) {
    return ((DirectBuffer) bytes).address() + (position - from);
  }

  ByteBuffer slice(long position, int length) {
    return bytes.slice((int) (position - from), length);
  }

  @Override
  public void close() {
    clear();
    StorageUtils.dispose(bytes);
  }

  /** The bytes from the position on that are here go to the front. */
  private void keep(long position) {
    bytes.clear();
    if (position >= from && position < to) {
      bytes.position((int) (position - from)).limit((int) (to - from));
      bytes.compact();
    }
  }
}
