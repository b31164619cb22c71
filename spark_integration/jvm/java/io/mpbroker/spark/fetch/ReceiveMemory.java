package io.mpbroker.spark.fetch;

import java.nio.ByteBuffer;
import org.apache.kafka.common.memory.MemoryPool;

/**
 * Gives a connection direct memory for large answers, and reuses it.
 *
 * <p>Records are decoded where they were received. Kafka's client releases no memory that it has received into,
 * so the fetcher gives it back.
 */
final class ReceiveMemory implements MemoryPool {
  /** The largest answer for which an array will do. */
  private static final int SMALL_BYTES = 16 << 10;

  private static final int USUAL_BYTES = (4 << 20) + SMALL_BYTES;

  private static final int KEPT_BYTES_MAX = 32 << 20;

  private ByteBuffer free;
  private ByteBuffer last;

  @Override
  public ByteBuffer tryAllocate(int bytes) {
    if (bytes <= SMALL_BYTES) {
      return ByteBuffer.allocate(bytes);
    }
    last = free != null && free.capacity() >= bytes ? free : ByteBuffer.allocateDirect(Math.max(bytes, USUAL_BYTES));
    free = null;
    return last.clear().limit(bytes);
  }

  /** Hands over the memory of the last large answer; null if there was none since the last call. */
  ByteBuffer take() {
    ByteBuffer taken = last;
    last = null;
    return taken;
  }

  /** Takes memory back when no batch in it is used any more. */
  void giveBack(ByteBuffer memory) {
    // The memory of a very large batch is left to the garbage collector.
    if (memory != null && memory.capacity() <= KEPT_BYTES_MAX) {
      free = memory;
    }
  }

  @Override
  public void release(ByteBuffer memory) {
    // A connection that broke: the garbage collector finds it.
  }

  @Override
  public long size() {
    return Long.MAX_VALUE;
  }

  @Override
  public long availableMemory() {
    return Long.MAX_VALUE;
  }

  @Override
  public boolean isOutOfMemory() {
    return false;
  }
}
