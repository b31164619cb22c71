package io.mpbroker.spark;

import java.util.ArrayList;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.util.Utils;

/**
 * Describes the work of one task: offsets [start, end) of a partition.
 *
 * <p>{@code clusterId} and {@code nodeId} name the broker that owns the log directory. {@code places} are the
 * directories in which the partition may be, the planned one first; without any the range has to be fetched.
 * {@code bucket} has its objects if it is read from a bucket, else it is null. {@code bytes} is the size of the
 * range when it was planned. {@code aborted} has the aborted transactions of which files may have records, if the
 * reader must leave these out.
 */
record LogRange(
    String topic,
    int partition,
    long start,
    long end,
    String topicId,
    String clusterId,
    String nodeId,
    ArrayList<String> places,
    BucketFiles bucket,
    long bytes,
    AbortedRanges aborted)
    implements InputPartition {

  /** An empty range of no partition. */
  static final LogRange NOTHING =
      new LogRange("", 0, 0, 0, null, "", "", new ArrayList<>(), null, 0, AbortedRanges.NOT_WANTED);

  /** Accepts null for {@code aborted} if the reader wants aborted records, too. */
  LogRange {
    aborted = aborted == null ? AbortedRanges.NOT_WANTED : aborted;
  }

  /** Describes a task that fetches. */
  static LogRange fetched(String topic, int partition, long start, long end, String topicId) {
    return new LogRange(
        topic, partition, start, end, topicId, "", "", new ArrayList<>(), null, 0, AbortedRanges.NOT_WANTED);
  }

  /** Returns the part of the range that lies within [from, to). */
  LogRange within(long from, long to) {
    return new LogRange(
        topic, partition, Math.max(start, from), Math.min(end, to), topicId, clusterId, nodeId, places, bucket,
        bytes, aborted);
  }

  /** Returns true if all offsets of the batch lie within the range. */
  boolean holds(BatchHeader header) {
    return header.baseOffset() >= start && header.lastOffset() < end;
  }

  @Override
  public String[] preferredLocations() {
    return places.isEmpty() ? new String[0] : new String[] {Utils.localHostName(), Utils.localCanonicalHostName()};
  }

  @Override
  public String toString() {
    return topic + "-" + partition + " offsets [" + start + ", " + end + ")";
  }
}
