package io.mpbroker.spark;

import io.mpbroker.spark.Failures.CorruptLog;
import io.mpbroker.spark.Failures.SourceUnavailable;
import io.mpbroker.spark.fetch.Fetcher;
import java.io.IOException;

/** Fetches the pieces of a range from brokers, as Python's read_remote does. Each answer is a piece. */
final class FetchedPieces extends MemoryPieces {
  private final LogRange range;
  private final Manifest.Rules rules;
  private final Fetcher fetcher;
  private long first;
  private long offset;
  private long deadlineNs;
  private boolean follows;
  private boolean isOver;
  /** Counts fetches of the offset that new leaders refused because their high watermark was still below it. */
  private int vain;
  private AbortedRanges aborted = AbortedRanges.NOT_WANTED;

  FetchedPieces(LogRange range, Manifest.Rules rules) {
    this.range = range;
    this.rules = rules;
    offset = range.start();
    try {
      fetcher =
          new Fetcher(
              rules.brokers(),
              new Fetcher.Partition(range.topic(), range.partition(), range.topicId(), range.toString()));
    } catch (Fetcher.Failed error) {
      throw unavailable(error);
    }
  }

  /** Makes `next` return records as they are written, and false if none come within the time. */
  void follow(long timeoutMs) {
    deadlineNs = System.nanoTime() + timeoutMs * 1_000_000;
    follows = true;
  }

  /** Returns the offset after the current piece. */
  long nextOffset() {
    return offset;
  }

  @Override
  public boolean next() throws IOException {
    while (offset < range.end() && !isOver) {
      try {
        Fetcher.Batches found = follows ? awaited() : fetcher.fetch(offset, range.end());
        if (found == null) {
          return false;
        }
        first = offset;
        records = found.records();
        aborted = AbortedRanges.known(found.aborted());
        offset = found.nextOffset();
        vain = 0;
        return true;
      } catch (Fetcher.Failed error) {
        skip(error);
      }
    }
    return false;
  }

  /** Returns the next batches; null if there are none in time. */
  private Fetcher.Batches awaited() throws IOException, Fetcher.Failed {
    for (long left = deadlineNs - System.nanoTime(); left > 0; left = deadlineNs - System.nanoTime()) {
      Fetcher.Batches found = fetcher.await(offset, left / 1_000_000);
      if (found != null) {
        return found;
      }
    }
    return null;
  }

  /** Continues after lost records if failOnDataLoss is false. Throws any other failure. */
  private void skip(Fetcher.Failed error) throws IOException {
    String what = "Cannot fetch offset " + offset + " of " + range + ": ";
    switch (error.reason) {
      case OFFSET_OUT_OF_RANGE -> {
        Fetcher.Bounds left = bounds();
        if (left.start() <= offset && offset < left.end()) {
          waitForLeader(what, error);
          return;
        }
        Failures.reportLoss(
            rules,
            what + "now its log start offset is " + left.start() + ", and it can be read up to " + left.end() + ".");
        // Records beyond the range's end were lost. A task that follows its partition goes back to the end.
        isOver = left.start() <= offset && !follows;
        offset = Math.max(left.start(), Math.min(offset, left.end()));
      }
      case TOPIC_DELETED -> {
        Failures.reportLoss(
            rules, what + "topic " + range.topic() + " was deleted since the query was planned.");
        isOver = true;
      }
      case DAMAGED -> throw corrupt(0, error.getMessage());
      default -> throw unavailable(error);
    }
  }

  /** Waits for the high watermark of a new leader, above which the leader answers without records. (KIP-207.) */
  private void waitForLeader(String what, Fetcher.Failed error) throws IOException {
    if (++vain > rules.brokers().retries()) {
      throw new SourceUnavailable(what + "the leader has it, and does not send it. Run the query again", error);
    }
    Fetcher.pause(rules.brokers().retryIntervalMs());
  }

  private Fetcher.Bounds bounds() throws IOException {
    try {
      return fetcher.bounds();
    } catch (Fetcher.Failed error) {
      throw unavailable(error);
    }
  }

  private static SourceUnavailable unavailable(Fetcher.Failed error) {
    return new SourceUnavailable(error.getMessage(), error);
  }

  @Override
  public long firstOffset() {
    return first;
  }

  @Override
  public String metric() {
    return ReadMetrics.RecordsFetched.NAME;
  }

  @Override
  public AbortedRanges aborted() {
    return aborted;
  }

  @Override
  public CorruptLog corrupt(long position, String reason) {
    return new CorruptLog("the broker sent a damaged batch, reading " + range + ": " + reason);
  }

  @Override
  public void close() throws IOException {
    fetcher.close();
  }
}
