package io.mpbroker.spark;

import java.io.Serializable;
import java.util.Arrays;

/**
 * Transactions that were aborted: what a producer wrote at offsets from the first to the last of one.
 *
 * <p>Sorted by producer and first offset, so that looking a batch up takes a logarithm of their number.
 */
final class AbortedRanges implements Serializable {
  /** For readers that want aborted records, too. */
  static final AbortedRanges NOT_WANTED = new AbortedRanges(new long[0][], false);

  private final long[][] ranges;
  private final boolean complete;

  /** All of a range, as (producer id, first offset, last offset); it keeps and sorts the array. */
  AbortedRanges(long[][] ranges) {
    this(ranges, true);
  }

  private AbortedRanges(long[][] ranges, boolean complete) {
    this.ranges = ranges;
    this.complete = complete;
    Arrays.sort(ranges, AbortedRanges::compare);
    for (int i = 1; i < ranges.length; i++) {
      // Where those of a producer overlap, the last one that begins before an offset decides for all.
      if (ranges[i - 1][0] == ranges[i][0]) {
        ranges[i][2] = Math.max(ranges[i][2], ranges[i - 1][2]);
      }
    }
  }

  /** Whether a transaction that was aborted has to be one of them. */
  boolean areComplete() {
    return complete;
  }

  /** Whether what this producer wrote at this offset belongs to one of them. */
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
