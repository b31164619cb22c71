package io.mpbroker.spark;

import io.mpbroker.spark.Failures.CorruptLog;
import io.mpbroker.spark.Failures.SourceUnavailable;
import java.io.Closeable;
import java.io.IOException;
import java.nio.ByteBuffer;
import org.apache.spark.storage.StorageUtils;
import sun.nio.ch.DirectBuffer;

/**
 * Holds a part of a segment file, its bytes [from, to), in memory that is used again for the next part.
 *
 * <p>The bytes are read and not mapped. So a bad disk or a shorter file causes an exception, where a fault in
 * a mapping might end the process. This costs no more CPU as long as the bytes fit the cache of a core.
 */
final class Window implements Closeable {
  /** The usual size, which fits the second-level cache of a core. Only a larger batch needs more. */
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
   * Moves to a position, and reads at least `least` bytes, and as many as fit of those before `end`.
   *
   * <p>Throws CorruptLog if the file no longer has them, SourceUnavailable if its disk fails.
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
              + ": " + error.getMessage() + " (see the kernel's log)",
          error);
    }
    to = position + wanted;
  }

  /** Forgets all bytes, because another file comes. */
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

  /** Moves the bytes from the position on that are already here to the front. */
  private void keep(long position) {
    bytes.clear();
    if (position >= from && position < to) {
      bytes.position((int) (position - from)).limit((int) (to - from));
      bytes.compact();
    }
  }
}
