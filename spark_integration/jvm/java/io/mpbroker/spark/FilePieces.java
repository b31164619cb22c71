package io.mpbroker.spark;

import io.mpbroker.spark.Failures.CorruptLog;
import java.io.IOException;
import java.nio.ByteBuffer;

/** Reads the pieces of a range from segment files, through a window of bounded size. */
final class FilePieces implements Pieces {
  private final LogRange range;
  private final SegmentFiles files;
  private final Window window;
  private SegmentFiles.Opened file;

  FilePieces(LogRange range, Manifest.Rules rules) throws IOException {
    this.range = range;
    files = new SegmentFiles(range, rules);
    window = new Window(range);
  }

  @Override
  public boolean next() throws IOException {
    window.clear();
    file = files.next();
    return file != null;
  }

  @Override
  public long firstOffset() {
    return range.start();
  }

  @Override
  public long start() {
    return file.position();
  }

  @Override
  public long end() {
    return file.end();
  }

  @Override
  public boolean holds(long position, long length) {
    return window.holds(position, length);
  }

  @Override
  public void move(long position, int least) throws IOException {
    window.move(file, position, least, file.end());
  }

  @Override
  public long address(long position) {
    return window.address(position);
  }

  @Override
  public ByteBuffer slice(long position, int length) {
    return window.slice(position, length);
  }

  @Override
  public AbortedRanges aborted() {
    return range.aborted();
  }

  @Override
  public CorruptLog corrupt(long position, String reason) {
    return new CorruptLog(file.path() + " is damaged at position " + position + ": " + reason + ", in " + range);
  }

  @Override
  public void close() throws IOException {
    window.close();
    files.close();
  }
}
