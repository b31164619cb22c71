package io.mpbroker.spark;

import java.io.Serializable;

/**
 * Names whole batches of one segment file: its bytes [position, end).
 *
 * <p>The inode tells the file from one that the cleaner has put in its place.
 */
record Piece(long base, long position, long end, long inode) implements Serializable {
  long bytes() {
    return end - position;
  }
}
