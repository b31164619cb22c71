package io.mpbroker.spark;

import java.util.ArrayList;
import java.util.List;
import org.apache.spark.sql.connector.read.InputPartition;

/**
 * Says what one task reads: offsets [start, end) of a partition, and the bytes where its plan found them.
 *
 * <p>{@code clusterId} and {@code nodeId} name the broker that owns the log directory. {@code places} are the
 * directories in which the partition may be, the planned one first. {@code first} is the first offset that
 * its files could have. {@code aborted} has the aborted transactions of which the range may have records, if
 * the reader must leave these out.
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
    long first,
    ArrayList<Piece> pieces,
    AbortedRanges aborted)
    implements InputPartition {

  /** Stands for a range of no partition. */
  static final LogRange NOTHING =
      new LogRange("", 0, 0, 0, null, "", "", new ArrayList<>(), 0, new ArrayList<>(),
          AbortedRanges.NOT_WANTED);

  /** Returns the same range, read from these bytes. */
  LogRange within(Piece piece) {
    ArrayList<Piece> only = new ArrayList<>(List.of(piece));
    return new LogRange(
        topic, partition, start, end, topicId, clusterId, nodeId, places, start, only, aborted);
  }

  long bytes() {
    return pieces.stream().mapToLong(Piece::bytes).sum();
  }

  @Override
  public String[] preferredLocations() {
    return Hosts.ofThisProcess();
  }

  @Override
  public String toString() {
    return topic + "-" + partition + " offsets [" + start + ", " + end + ")";
  }
}
