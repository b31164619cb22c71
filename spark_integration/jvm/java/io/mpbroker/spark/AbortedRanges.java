package io.mpbroker.spark;

import com.fasterxml.jackson.annotation.JsonCreator;
import java.io.Serializable;
import java.util.Arrays;

/**
 * Holds aborted transactions, each as a producer and the offsets from its first to its last record.
 *
 * <p>They are sorted by producer and first offset, so that looking up a batch takes logarithmic time.
 */
final class AbortedRanges implements Serializable {
  /** Has no ranges: for readers that return aborted records, too. */
  static final AbortedRanges NOT_WANTED = new AbortedRanges(new long[0][], false);

  private final long[][] ranges;
  private final boolean complete;

  /** Takes over the array, whose rows are (producer id, first offset, last offset), and sorts it. */
  @JsonCreator
  AbortedRanges(long[][] ranges) {
    this(ranges, true);
  }

  /** Takes over an incomplete list of ranges: other transactions may be aborted, too. */
  static AbortedRanges known(long[][] ranges) {
    return new AbortedRanges(ranges, false);
  }

  private AbortedRanges(long[][] ranges, boolean complete) {
    this.ranges = ranges;
    this.complete = complete;
    Arrays.sort(ranges, AbortedRanges::compare);
    for (int i = 1; i < ranges.length; i++) {
      // Ranges of one producer may overlap. The last one that begins before an offset decides for all.
      if (ranges[i - 1][0] == ranges[i][0]) {
        ranges[i][2] = Math.max(ranges[i][2], ranges[i - 1][2]);
      }
    }
  }

  /** Returns true if this has every aborted transaction of the range that is read. */
  boolean areComplete() {
    return complete;
  }

  /** Returns true if the record of this producer at this offset is part of an aborted transaction. */
  boolean hold(long producerId, long offset) {
    int low = 0;
    int high = ranges.length;
    while (low < high) {
      int middle = (low + high) >>> 1;
      long[] one = ranges[middle];
      if (one[0] < producerId || one[0] == producerId && one[1] <= offset) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low > 0 && ranges[low - 1][0] == producerId && offset <= ranges[low - 1][2];
  }

  private static int compare(long[] one, long[] other) {
    int byProducer = Long.compare(one[0], other[0]);
    return byProducer != 0 ? byProducer : Long.compare(one[1], other[1]);
  }
}
