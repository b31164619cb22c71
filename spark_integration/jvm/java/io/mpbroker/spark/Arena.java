package io.mpbroker.spark;

import java.util.ArrayList;
import java.util.List;
import org.apache.spark.unsafe.Platform;

/** Owns the memory for the unpacked records of a columnar batch. Columns point into it. */
final class Arena implements AutoCloseable {
  private static final long CHUNK_BYTES = 4 << 20;

  private final List<Long> chunks = new ArrayList<>();
  private final List<Long> sizes = new ArrayList<>();
  private int current;
  private long used;
  private long total;

  /** Copies the bytes and returns their address, which is valid until `reset`. */
  long add(byte[] source, int bytes) {
    while (current < chunks.size() && used + bytes > sizes.get(current)) {
      current++;
      used = 0;
    }
    if (current == chunks.size()) {
      long size = Math.max(CHUNK_BYTES, bytes);
      chunks.add(Platform.allocateMemory(size));
      sizes.add(size);
      used = 0;
    }
    long address = chunks.get(current) + used;
    Platform.copyMemory(source, Platform.BYTE_ARRAY_OFFSET, null, address, bytes);
    used += bytes;
    total += bytes;
    return address;
  }

  /** Returns the number of bytes that were added since `reset`. */
  long total() {
    return total;
  }

  void reset() {
    current = 0;
    used = 0;
    total = 0;
  }

  @Override
  public void close() {
    chunks.forEach(Platform::freeMemory);
    chunks.clear();
    sizes.clear();
    reset();
  }
}
