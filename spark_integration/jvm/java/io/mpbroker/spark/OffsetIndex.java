package io.mpbroker.spark;

import io.mpbroker.spark.Failures.CorruptLog;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;

/**
 * Looks positions up in a segment's offset index (Kafka: OffsetIndex).
 *
 * <p>An entry is believed if the log has that batch there. Java cannot ask which file a channel has open, so
 * the file's key is read before the log is opened and after the index is read: if the cleaner has replaced
 * the log in between, the index may belong to the new file, and is not used.
 */
final class OffsetIndex {
  private static final int ENTRY_BYTES = 8;

  private final Path log;
  private final Path path;
  private final long base;
  private final Object file;

  /** Must be called before the log file is opened. Throws NoSuchFileException if there is no log file. */
  OffsetIndex(Path log, long base) throws IOException {
    this.log = log;
    this.base = base;
    path = log.resolveSibling(log.getFileName().toString().replace(".log", ".index"));
    file = fileKey();
  }

  /** Returns the position of a batch at or before the offset; 0 if the index does not know one. */
  long floor(HeaderReader headers, long offset) throws IOException {
    long entry;
    try (FileChannel index = FileChannel.open(path, StandardOpenOption.READ)) {
      entry = entry(index, offset - base);
    } catch (NoSuchFileException error) {
      return 0;
    }
    long position = (int) entry;
    if (entry < 0 || position <= 0 || !fileKey().equals(file)) {
      return 0;
    }
    try {
      return headers.at(position).baseOffset() <= base + (entry >> 32) ? position : 0;
    } catch (CorruptLog error) {
      return 0;
    }
  }

  /** Returns the last entry with a relative offset (its upper half) up to {@code wanted}; -1 without one. */
  private static long entry(FileChannel index, long wanted) throws IOException {
    ByteBuffer bytes = ByteBuffer.allocate(ENTRY_BYTES);
    long found = -1;
    long low = 0;
    long high = index.size() / ENTRY_BYTES;
    while (low < high) {
      long middle = (low + high) / 2;
      if (index.read(bytes.clear(), middle * ENTRY_BYTES) != ENTRY_BYTES) {
        return -1;
      }
      long entry = bytes.getLong(0);
      // Zeros are the unused tail.
      if (entry == 0 || entry >> 32 > wanted) {
        high = middle;
      } else {
        found = entry;
        low = middle + 1;
      }
    }
    return found;
  }

  private Object fileKey() throws IOException {
    return Files.getAttribute(log, "unix:fileKey");
  }
}
