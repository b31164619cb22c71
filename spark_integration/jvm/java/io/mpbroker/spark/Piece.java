package io.mpbroker.spark;

import java.io.Serializable;

/**
 * Whole batches of one segment file: its bytes [position, end). The file is known by its inode, should the
 * cleaner replace it.
 */
record Piece(long base, long position, long end, long inode) implements Serializable {
  long bytes() {
    return end - position;
  }
}
