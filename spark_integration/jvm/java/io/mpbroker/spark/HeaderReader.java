package io.mpbroker.spark;

import io.mpbroker.spark.Failures.CorruptLog;
import io.mpbroker.spark.Failures.Malformed;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Path;

/** Reads the batch headers of a file. It reads nothing else of large batches. */
final class HeaderReader {
  private static final int CHUNK_BYTES = 8 << 10;

  private final FileChannel channel;
  private final Path path;
  private final long end;
  private final LogRange range;
  private final ByteBuffer chunk = ByteBuffer.allocateDirect(CHUNK_BYTES);
  private long chunkFrom;
  private long chunkTo;

  /** Reads headers of the bytes before `end`. */
  HeaderReader(FileChannel channel, Path path, long end, LogRange range) {
    this.channel = channel;
    this.path = path;
    this.end = end;
    this.range = range;
  }

  /** Returns the header at the position. Throws CorruptLog if no batch begins there. */
  BatchHeader at(long position) throws IOException {
    if (position < chunkFrom || position + BatchHeader.BYTES > chunkTo) {
      fill(position);
    }
    try {
      if (position + BatchHeader.BYTES > chunkTo) {
        throw new Malformed("the header of the batch is cut off");
      }
      return BatchHeader.read(chunk, (int) (position - chunkFrom));
    } catch (Malformed error) {
      throw corrupt(position, error.getMessage());
    }
  }

  /** Returns all bytes of a batch. Throws CorruptLog if the file does not have them. */
  ByteBuffer whole(long position, int length) throws IOException {
    ByteBuffer batch = ByteBuffer.allocate(length);
    read(batch, position);
    if (batch.hasRemaining()) {
      throw corrupt(position, "the batch is cut off");
    }
    return batch.flip();
  }

  CorruptLog corrupt(long position, String reason) {
    return new CorruptLog(path + " is damaged at position " + position + ": " + reason + ", in " + range);
  }

  private void fill(long position) throws IOException {
    chunk.clear().limit((int) Math.max(0, Math.min(CHUNK_BYTES, end - position)));
    chunkFrom = position;
    read(chunk, position);
    chunkTo = position + chunk.position();
    chunk.limit(chunk.position());
  }

  private void read(ByteBuffer bytes, long position) throws IOException {
    while (bytes.hasRemaining() && channel.read(bytes, position + bytes.position()) >= 0) {
      // A read may return fewer bytes than were asked for.
    }
  }
}
