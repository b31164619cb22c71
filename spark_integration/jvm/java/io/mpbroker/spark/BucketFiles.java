package io.mpbroker.spark;

import com.fasterxml.jackson.annotation.JsonFormat;
import com.fasterxml.jackson.annotation.JsonPropertyOrder;
import java.io.Serializable;
import java.util.ArrayList;

/** Names the segments of a range in the bucket at a URL, by offset. (Python: BucketFiles in reading/plan.py.) */
record BucketFiles(String url, ArrayList<Segment> segments) implements Serializable {

  /**
   * Holds offsets [base, end) of a partition.
   *
   * <p>{@code log} is the segment's file in pieces, one after the other; a batch may lie in several. {@code offsetIndex} is
   * its offset index, without pieces if there is none.
   */
  @JsonFormat(shape = JsonFormat.Shape.ARRAY)
  @JsonPropertyOrder({"base", "end", "log", "offsetIndex"})
  record Segment(long base, long end, ArrayList<Piece> log, ArrayList<Piece> offsetIndex) implements Serializable {
    /** Returns the size of the segment's file. */
    long bytes() {
      return bytes(log);
    }

    /** Returns true if it is of a cut: then the next cut, or a sealed segment, has its records. */
    boolean isOfACut() {
      return log.get(0).name().startsWith("mpbroker/bundles/");
    }

    static long bytes(ArrayList<Piece> pieces) {
      return pieces.stream().mapToLong(Piece::length).sum();
    }
  }

  /** Holds `length` bytes of an object from `position` on. */
  @JsonFormat(shape = JsonFormat.Shape.ARRAY)
  @JsonPropertyOrder({"name", "position", "length"})
  record Piece(String name, long position, long length) implements Serializable {}
}
