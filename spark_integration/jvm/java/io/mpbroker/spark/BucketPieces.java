package io.mpbroker.spark;

import io.mpbroker.spark.BucketFiles.Segment;
import io.mpbroker.spark.Failures.CorruptLog;
import io.mpbroker.spark.Failures.Malformed;
import java.io.IOException;
import java.io.InterruptedIOException;
import java.nio.ByteBuffer;
import java.util.ArrayDeque;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.apache.spark.storage.StorageUtils;

/**
 * Reads the pieces of a range from a bucket: each is the whole batches of a window of a segment.
 *
 * <p>Threads read the next windows while one is decoded, into memory that no address points to.
 */
final class BucketPieces extends MemoryPieces {
  private static final int WINDOW_BYTES = 16 << 20;
  private static final int WINDOWS_AHEAD = 2;

  /** The size of a window after the position where the range ends by the index. It is not read ahead. */
  private static final int REST_BYTES = 1 << 20;

  private static final ExecutorService THREADS =
      Executors.newCachedThreadPool(
          work -> {
            Thread made = new Thread(work, "mpbroker bucket");
            made.setDaemon(true);
            return made;
          });

  private final LogRange range;
  private final Manifest.Rules rules;
  private final Bucket bucket;

  /** The segments of which no window was asked for. */
  private final ArrayDeque<Segment> later = new ArrayDeque<>();

  /** Where the next window begins, and where windows end that are read ahead. */
  private Segment asked;
  private long askedUpTo;
  private long askedAtMost;

  private final ArrayDeque<Read> reads = new ArrayDeque<>();

  /** The segment whose bytes are in memory, and where they begin in it. */
  private Segment segment;
  private long from;

  /** Has the current piece, and then the beginning of a batch. Its position is where the bytes end. */
  private ByteBuffer memory = ByteBuffer.allocateDirect(0);

  /** The error after the current piece; null if there is none. */
  private CorruptLog damage;

  /** Holds a window that is read, or was. */
  private record Read(Segment segment, long at, int length, Future<byte[]> bytes) {
    boolean isLast() {
      return at + length == segment.bytes();
    }
  }

  BucketPieces(LogRange range, Manifest.Rules rules) throws IOException {
    this.range = range;
    this.rules = rules;
    bucket = new Bucket(range.bucket().url());
    for (Segment one : range.bucket().segments()) {
      if (one.base() < range.end() && range.start() < one.end()) {
        later.add(one);
      }
    }
  }

  @Override
  public boolean next() throws IOException {
    throwDamage();
    memory.limit(memory.position()).position(records.limit());
    from += records.limit();
    memory.compact();
    records = memory.slice(0, 0);
    for (ask(); !reads.isEmpty(); ask()) {
      Read read = reads.remove();
      if (read.segment() != segment) {
        segment = read.segment();
        from = read.at();
        memory.clear();
      }
      byte[] found = received(read);
      if (found == null) {
        continue;
      }
      append(found);
      records = memory.slice(0, wholeBatches(read.isLast()));
      if (records.hasRemaining()) {
        return true;
      }
      throwDamage();
    }
    return false;
  }

  /** Has the next windows read. */
  private void ask() throws IOException {
    while (reads.size() <= WINDOWS_AHEAD) {
      if (asked == null || askedUpTo == asked.bytes()) {
        if (later.isEmpty()) {
          return;
        }
        open(later.remove());
      }
      boolean isRest = askedUpTo >= askedAtMost;
      if (isRest && !reads.isEmpty()) {
        return;
      }
      Segment one = asked;
      long at = askedUpTo;
      long end = isRest ? Math.min(at + REST_BYTES, one.bytes()) : Math.min(at + WINDOW_BYTES, askedAtMost);
      int length = (int) (end - at);
      reads.add(new Read(one, at, length, THREADS.submit(() -> bucket.read(one.log(), at, length))));
      askedUpTo = end;
    }
  }

  /** Looks up where the range begins and ends in a segment. */
  private void open(Segment opened) throws IOException {
    asked = opened;
    askedUpTo = 0;
    askedAtMost = opened.bytes();
    if (opened.index().isEmpty() || range.start() <= opened.base() && opened.end() <= range.end()) {
      return;
    }
    try {
      BucketIndex index = new BucketIndex(bucket, opened);
      askedUpTo = range.start() > opened.base() ? index.floor(range.start()) : 0;
      askedAtMost = range.end() < opened.end() ? index.above(range.end() - 1) : opened.bytes();
    } catch (Bucket.Missing error) {
      // The log is read from its beginning, if it is there.
    }
  }

  /** Waits for the bytes of a window. Returns null if the segment is gone, and its loss was reported and is accepted. */
  private byte[] received(Read read) throws IOException {
    try {
      return read.bytes().get();
    } catch (InterruptedException error) {
      throw (IOException) new InterruptedIOException("reading " + range + " was interrupted").initCause(error);
    } catch (ExecutionException error) {
      if (error.getCause() instanceof Bucket.Missing missing) {
        Failures.reportLoss(rules, missing.getMessage() + ", in " + range + ".");
        memory.clear();
        reads.removeIf(one -> one.segment() == segment);
        askedUpTo = asked == segment ? asked.bytes() : askedUpTo;
        return null;
      }
      if (error.getCause() instanceof RuntimeException failure) {
        throw failure;
      }
      throw new IOException(error.getCause());
    }
  }

  private void append(byte[] found) {
    if (memory.position() + found.length > memory.capacity()) {
      ByteBuffer larger = ByteBuffer.allocateDirect(memory.position() + found.length).put(memory.flip());
      StorageUtils.dispose(memory);
      memory = larger;
    }
    memory.limit(memory.capacity()).put(found);
  }

  /** Returns where the whole batches in memory end. After the last batch of the range, drops all reads. */
  private int wholeBatches(boolean areLast) {
    int at = 0;
    int end = memory.position();
    try {
      while (at < end) {
        if (at + BatchHeader.BYTES > end) {
          if (areLast) {
            throw new Malformed("the header of the batch is cut off");
          }
          break;
        }
        BatchHeader header = BatchHeader.read(memory, at);
        if (from + at + header.length() > segment.bytes()) {
          throw new Malformed(BatchHeader.reachesBeyond(segment.bytes()));
        }
        if (at + header.length() > end) {
          break;
        }
        at += header.length();
        if (header.lastOffset() >= range.end() - 1) {
          stop();
          break;
        }
      }
    } catch (Malformed error) {
      // The batches before it are read first: one of them may have a wrong length, and fail its CRC.
      damage = corrupt(at, error.getMessage());
    }
    return at;
  }

  private void throwDamage() {
    if (damage != null) {
      throw damage;
    }
  }

  private void stop() {
    later.clear();
    askedUpTo = asked.bytes();
    reads.forEach(one -> one.bytes().cancel(true));
    reads.clear();
  }

  @Override
  public long firstOffset() {
    return range.start();
  }

  @Override
  public String metric() {
    return ReadMetrics.RecordsOfBucket.NAME;
  }

  @Override
  public AbortedRanges aborted() {
    return range.aborted();
  }

  @Override
  public CorruptLog corrupt(long position, String reason) {
    return new CorruptLog(bucket.where(segment.log(), from + position) + ": " + reason + ", in " + range);
  }

  @Override
  public void close() {
    if (asked != null) {
      stop();
    }
    records = memory.slice(0, 0);
    StorageUtils.dispose(memory);
  }
}
