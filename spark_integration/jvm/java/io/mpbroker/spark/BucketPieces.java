package io.mpbroker.spark;

import io.mpbroker.spark.BucketFiles.Segment;
import io.mpbroker.spark.Failures.CorruptLog;
import io.mpbroker.spark.Failures.Malformed;
import io.mpbroker.spark.Failures.SourceUnavailable;
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
 * Reads the pieces of a range from a bucket, as Python's read_bucket does: each is the whole batches of a window.
 *
 * <p>Threads read the next windows while one is decoded, into memory that no address points to.
 */
final class BucketPieces extends MemoryPieces {
  private static final int WINDOW_BYTES = 16 << 20;
  private static final int WINDOWS_AHEAD = 2;

  private static final ExecutorService THREADS =
      Executors.newCachedThreadPool(
          work -> {
            Thread made = new Thread(work, "bucket reader");
            made.setDaemon(true);
            return made;
          });

  private final LogRange range;
  private final Manifest.Rules rules;
  private final Bucket bucket;

  /** Has the parts of the range of which no window was asked for. */
  private final ArrayDeque<Part> later = new ArrayDeque<>();

  /** The part of the next window, where that begins, and up to where windows are read ahead. */
  private Part asked;
  private long askedUpTo;
  private long askedAtMost;

  private final ArrayDeque<Read> reads = new ArrayDeque<>();

  /** The part whose bytes are in memory, and where they begin in its segment. */
  private Part part;
  private long from;

  /** Has the current piece, and then the beginning of a batch. Its position is where the bytes end. */
  private ByteBuffer memory = ByteBuffer.allocateDirect(0);

  /** The error after the current piece; null if there is none. */
  private CorruptLog damage;

  /** Holds the offsets [start, end) of a segment. */
  private record Part(Segment segment, long start, long end) {
    boolean isWhole() {
      return start == segment.base() && end == segment.end();
    }
  }

  /** Holds a window that is read, or was. */
  private record Read(Part part, long at, int length, Future<byte[]> bytes) {
    boolean isLast() {
      return at + length == part.segment().bytes();
    }
  }

  BucketPieces(LogRange range, Manifest.Rules rules) throws IOException {
    this.range = range;
    this.rules = rules;
    bucket = new Bucket(range.bucket().url());
    long at = range.start();
    for (Segment one : range.bucket().segments()) {
      long start = Math.max(at, one.base());
      long end = Math.min(range.end(), one.end());
      if (start < end) {
        reportGap(at, start);
        later.add(new Part(one, start, end));
        at = end;
      }
    }
    reportGap(at, range.end());
  }

  private void reportGap(long start, long end) {
    if (start < end) {
      Failures.reportLoss(rules, cannotRead(start, end) + "no object has them.");
    }
  }

  private String cannotRead(long start, long end) {
    return "Cannot read offsets " + start + " to " + (end - 1) + " of " + range + ": ";
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
      if (read.part() != part) {
        part = read.part();
        from = read.at();
        memory.clear();
      }
      byte[] found = received(read);
      if (found != null) {
        append(found);
        records = memory.slice(0, wholeBatches(read.isLast()));
        if (records.hasRemaining()) {
          return true;
        }
        throwDamage();
      }
    }
    return false;
  }

  /** Has the next windows read. A window after the likely end of the range is read if it does not end there. */
  private void ask() throws IOException {
    while (reads.size() <= WINDOWS_AHEAD) {
      if (asked == null || askedUpTo == asked.segment().bytes()) {
        if (later.isEmpty()) {
          return;
        }
        open(later.remove());
      }
      if (askedUpTo >= askedAtMost) {
        if (!reads.isEmpty()) {
          return;
        }
        askedAtMost = asked.segment().bytes();
      }
      Segment segment = asked.segment();
      long at = askedUpTo;
      int length = (int) Math.min(WINDOW_BYTES, askedAtMost - at);
      reads.add(new Read(asked, at, length, THREADS.submit(() -> bucket.read(segment.log(), at, length))));
      askedUpTo += length;
    }
  }

  /** Looks up where a part begins and ends in its segment. */
  private void open(Part opened) throws IOException {
    asked = opened;
    Segment segment = opened.segment();
    askedUpTo = 0;
    askedAtMost = segment.bytes();
    if (opened.isWhole() || segment.offsetIndex().isEmpty()) {
      return;
    }
    try {
      BucketIndex index = new BucketIndex(bucket, segment);
      askedUpTo = index.floor(opened.start());
      askedAtMost = index.behind(opened.end());
    } catch (Bucket.Missing error) {
      // Whether the segment is gone says its log, which is read from its beginning.
    }
  }

  /** Waits for the bytes of a window. Returns null if they are gone, and their loss was reported and is accepted. */
  private byte[] received(Read read) throws IOException {
    try {
      return read.bytes().get();
    } catch (InterruptedException error) {
      throw (IOException) new InterruptedIOException("reading " + range + " was interrupted").initCause(error);
    } catch (ExecutionException error) {
      if (error.getCause() instanceof Bucket.Missing missing) {
        reportMissing(missing);
        leave();
        return null;
      }
      if (error.getCause() instanceof RuntimeException failure) {
        throw failure;
      }
      throw new IOException(error.getCause());
    }
  }

  private void reportMissing(Bucket.Missing missing) {
    String what = cannotRead(part.start(), part.end()) + missing.getMessage();
    if (part.segment().isOfACut()) {
      throw new SourceUnavailable(
          what + ": the cut that they were planned with is no longer kept. Run the query again", missing);
    }
    Failures.reportLoss(rules, what + ".");
  }

  private void append(byte[] found) {
    if (memory.position() + found.length > memory.capacity()) {
      ByteBuffer larger = ByteBuffer.allocateDirect(memory.position() + found.length).put(memory.flip());
      StorageUtils.dispose(memory);
      memory = larger;
    }
    memory.limit(memory.capacity()).put(found);
  }

  /** Returns where the whole batches of the part in memory end. After its last one, leaves the part. */
  private int wholeBatches(boolean isSegmentsEnd) {
    int at = 0;
    int end = memory.position();
    try {
      while (at + BatchHeader.BYTES <= end) {
        BatchHeader header = BatchHeader.read(memory, at);
        if (header.baseOffset() >= part.end()) {
          leave();
          return at;
        }
        if (from + at + header.length() > part.segment().bytes()) {
          throw new Malformed(BatchHeader.reachesBeyond(part.segment().bytes()));
        }
        if (at + header.length() > end) {
          return at;
        }
        at += header.length();
        if (header.lastOffset() >= part.end() - 1) {
          leave();
          return at;
        }
      }
      if (isSegmentsEnd && at < end) {
        throw new Malformed("the header of the batch is cut off");
      }
    } catch (Malformed error) {
      // The batches before it are read first: one of them may have a wrong length, and fails its CRC.
      damage = corrupt(at, error.getMessage());
    }
    return at;
  }

  private void throwDamage() {
    if (damage != null) {
      throw damage;
    }
  }

  /** Asks for nothing more of the current part. */
  private void leave() {
    while (!reads.isEmpty() && reads.element().part() == part) {
      reads.remove().bytes().cancel(true);
    }
    if (asked == part) {
      askedUpTo = asked.segment().bytes();
    }
  }

  @Override
  public long firstOffset() {
    return part.start();
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
    return new CorruptLog(bucket.where(part.segment().log(), from + position) + ": " + reason + ", in " + range);
  }

  @Override
  public void close() {
    reads.forEach(one -> one.bytes().cancel(true));
    reads.clear();
    records = ByteBuffer.allocateDirect(0);
    StorageUtils.dispose(memory);
  }
}
