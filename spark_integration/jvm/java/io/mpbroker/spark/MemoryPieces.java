package io.mpbroker.spark;

import java.nio.ByteBuffer;
import sun.nio.ch.DirectBuffer;

/** Has the current piece whole in memory: its window is all of it. */
abstract class MemoryPieces implements Pieces {
  /** Holds the batches of the piece, from index 0 up to the limit. It is a direct buffer. */
  protected ByteBuffer records = ByteBuffer.allocateDirect(0);

  @Override
  public long start() {
    return 0;
  }

  @Override
  public long end() {
    return records.limit();
  }

  @Override
  public boolean holds(long position, long length) {
    return position + length <= records.limit();
  }

  /** Throws, since the window is the whole piece. */
  @Override
  public void move(long position, int least) {
    throw new IllegalStateException("all batches are in memory");
  }

  @Override
  public long address(long position) {
    return ((DirectBuffer) records).address() + position;
  }

  @Override
  public ByteBuffer slice(long position, int length) {
    return records.slice((int) position, length);
  }
}
