package io.mpbroker.spark;

import io.mpbroker.spark.Failures.CorruptLog;
import io.mpbroker.spark.Failures.SourceUnavailable;
import java.io.Closeable;
import java.io.IOException;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.TreeSet;

/**
 * Opens the segment files of a range one after the other, as Python's read_local does.
 *
 * <p>Between plan and task, retention may delete files, the cleaner may replace them, and the partition may
 * move to another log directory. The remaining offsets are then looked for again. Offsets that cannot be
 * found are data loss.
 */
final class SegmentFiles implements Closeable {
  private static final int TRIES = 100;
  private static final String LOG_SUFFIX = ".log";

  private final LogRange range;
  private final Manifest.Rules rules;
  private final ArrayDeque<Piece> rest;
  private Path directory;
  private long start;
  private int tries;
  private Opened current;

  /** Holds an open segment file, and which of its bytes are wanted. */
  record Opened(Path path, FileChannel channel, Piece piece) {}

  SegmentFiles(LogRange range, Manifest.Rules rules) throws IOException {
    this.range = range;
    this.rules = rules;
    start = range.start();
    Path planned = Path.of(range.places().get(0));
    if (!isOfTheBroker(planned.resolveSibling("meta.properties"))) {
      throw new SourceUnavailable(
          planned.getParent() + " of the broker that was planned with (cluster " + range.clusterId()
              + ", node " + range.nodeId() + ") is not on this host. Run the tasks where the files are, or "
              + "give kafka.bootstrap.servers too and option accelerated=false, so that tasks here can fetch",
          null);
    }
    rest = new ArrayDeque<>();
    begin();
  }

  /** Closes the present file and opens the next; null after the last. Throws DataLoss, CorruptLog. */
  Opened next() throws IOException {
    close();
    while (!rest.isEmpty()) {
      Piece piece = rest.remove();
      Path path = directory.resolve(segmentName(piece.base()));
      try {
        FileChannel channel = FileChannel.open(path, StandardOpenOption.READ);
        current = new Opened(path, channel, piece);
        if (inode(path) == piece.inode()) {
          checkSize(current);
          return current;
        }
        close();
      } catch (NoSuchFileException error) {
        // The file is looked for again below, as if it had been replaced.
      }
      start = Math.max(start, piece.base());
      if (++tries > TRIES) {
        String text = "Cannot read a part of " + range + ": " + path + " is another file again and again.";
        Failures.reportLoss(rules, text);
        return null;
      }
      lookAgain();
    }
    return null;
  }

  @Override
  public void close() throws IOException {
    if (current != null) {
      current.channel().close();
      current = null;
    }
  }

  /** Uses the planned pieces if the planned directory still belongs to the topic. */
  private void begin() throws IOException {
    directory = find();
    if (directory == null) {
      return;
    }
    if (range.first() > start) {
      reportGap(range.first());
    }
    rest.addAll(range.pieces());
  }

  private void lookAgain() throws IOException {
    rest.clear();
    directory = find();
    if (directory != null) {
      rest.addAll(pieces());
    }
  }

  /** Returns where the partition is now; null if its loss was reported and is accepted. */
  private Path find() throws IOException {
    for (String place : range.places()) {
      Path candidate = Path.of(place);
      if (Files.isDirectory(candidate) && isOfTheTopic(candidate)) {
        return candidate;
      }
    }
    Path planned = Path.of(range.places().get(0));
    boolean isThere = Files.isDirectory(planned);
    String what = isThere ? " belongs to another topic of that name now." : " is gone.";
    Failures.reportLoss(rules, "Cannot read " + range + ": " + planned + what);
    return null;
  }

  /** Checks the broker, since another host may have another broker's directory at the same path. */
  private boolean isOfTheBroker(Path metadata) throws IOException {
    if (!Files.isRegularFile(metadata)) {
      return false;
    }
    Properties given = new Properties();
    try (var text = Files.newBufferedReader(metadata)) {
      given.load(text);
    }
    // Before KRaft, Kafka calls it broker.id.
    String nodeId = given.getProperty("node.id", given.getProperty("broker.id", ""));
    return given.getProperty("cluster.id", "").equals(range.clusterId()) && nodeId.equals(range.nodeId());
  }

  private boolean isOfTheTopic(Path candidate) throws IOException {
    Path metadata = candidate.resolve("partition.metadata");
    if (!Files.exists(metadata)) {
      return range.topicId() == null;
    }
    return range.topicId() != null && Files.readAllLines(metadata).contains("topic_id: " + range.topicId());
  }

  /** Finds the bytes that have [start, end) now, by a walk over the headers: this is rare. */
  private List<Piece> pieces() throws IOException {
    TreeSet<Long> bases = bases();
    List<Piece> found = new ArrayList<>();
    if (bases.isEmpty() || bases.first() >= range.end()) {
      String text = "Cannot read " + range + ": " + directory + " has no segment of it any more.";
      Failures.reportLoss(rules, text);
      return found;
    }
    if (bases.first() > start) {
      reportGap(bases.first());
    }
    for (long base : bases) {
      Long following = bases.higher(base);
      if (base < range.end() && (following == null || following > start)) {
        long until = following == null ? range.end() : Math.min(range.end(), following);
        Piece piece = walk(base, until);
        if (piece != null && piece.bytes() > 0) {
          found.add(piece);
        }
      }
    }
    return found;
  }

  private TreeSet<Long> bases() throws IOException {
    TreeSet<Long> bases = new TreeSet<>();
    try (var names = Files.newDirectoryStream(directory, "*" + LOG_SUFFIX)) {
      for (Path name : names) {
        String number = name.getFileName().toString().replace(LOG_SUFFIX, "");
        if (number.matches("\\d{20}")) {
          bases.add(Long.parseLong(number));
        }
      }
    }
    return bases;
  }

  /** Finds the batches from the first that reaches `start` to the last that begins before `until`. */
  private Piece walk(long base, long until) throws IOException {
    Path path = directory.resolve(segmentName(base));
    try (FileChannel channel = FileChannel.open(path, StandardOpenOption.READ)) {
      long inode = inode(path);
      long size = channel.size();
      HeaderReader headers = new HeaderReader(channel, path, size, range);
      long position = 0;
      long first = -1;
      while (position + BatchHeader.BYTES <= size) {
        BatchHeader header = headers.at(position);
        if (header.baseOffset() >= until || position + header.length() > size) {
          break;
        }
        if (first < 0 && header.lastOffset() >= start) {
          first = position;
        }
        position += header.length();
      }
      return new Piece(base, first < 0 ? position : first, position, inode);
    } catch (NoSuchFileException error) {
      return new Piece(base, 0, 1, -1);
    }
  }

  private void reportGap(long first) {
    long lost = Math.min(first, range.end()) - 1;
    String offsets = "Cannot read offsets " + start + " to " + lost + " of " + range;
    Failures.reportLoss(rules, offsets + ": the log starts at " + first + " now.");
    start = first;
  }

  private static void checkSize(Opened file) throws IOException {
    if (file.channel().size() < file.piece().end()) {
      throw new CorruptLog(
          file.path() + " became shorter than " + file.piece().end() + " bytes while it was read");
    }
  }

  private static long inode(Path path) throws IOException {
    return (Long) Files.getAttribute(path, "unix:ino");
  }

  private static String segmentName(long base) {
    return String.format("%020d%s", base, LOG_SUFFIX);
  }
}
