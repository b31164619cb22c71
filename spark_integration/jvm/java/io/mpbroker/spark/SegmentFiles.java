package io.mpbroker.spark;

import io.mpbroker.spark.Failures.CorruptLog;
import io.mpbroker.spark.Failures.SourceUnavailable;
import java.io.Closeable;
import java.io.IOException;
import java.nio.channels.FileChannel;
import java.nio.file.AccessDeniedException;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.NotDirectoryException;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.Properties;
import java.util.TreeSet;

/**
 * Opens the segment files of a range one after the other, as Python's read_local does.
 *
 * <p>Retention may delete files, the cleaner may replace them, and the partition may move to another log
 * directory. So only offsets are kept between files; positions are looked up in the file that is open. Offsets
 * that cannot be found are data loss.
 */
final class SegmentFiles implements Closeable {
  /** The bytes of a file of remote segments that names none. */
  private static final int REMOTE_HEAD_BYTES = 16;
  private static final int TRIES = 100;
  private static final String LOG_SUFFIX = ".log";

  private final LogRange range;
  private final Manifest.Rules rules;
  private TreeSet<Long> bases;
  /** Where the partition is; null if its loss was reported and is accepted. */
  private Path directory;
  /** The first offset of the next file. */
  private long start;
  private int tries;
  private Opened current;

  /** Holds an open segment file, and which of its bytes are wanted: whole batches. */
  record Opened(Path path, FileChannel channel, long position, long end) {}

  SegmentFiles(LogRange range, Manifest.Rules rules) throws IOException {
    this.range = range;
    this.rules = rules;
    start = range.start();
    locate();
  }

  /**
   * Returns true if this host has the log directory of the planned broker, false if records have to be fetched.
   *
   * <p>Throws SourceUnavailable if there are no brokers to fetch from.
   */
  static boolean areHere(LogRange range, Manifest.Rules rules) throws IOException {
    if (range.places().isEmpty()) {
      return false;
    }
    Path planned = Path.of(range.places().get(0));
    try {
      if (isOfTheBroker(planned.resolveSibling("meta.properties"), range)) {
        // Throws if this process may not read the directory.
        Files.newDirectoryStream(planned).close();
        return true;
      }
    } catch (NoSuchFileException | NotDirectoryException error) {
      // The partition may have moved to another log directory.
      return true;
    } catch (AccessDeniedException error) {
      if (rules.brokers() == null) {
        throw new SourceUnavailable("Permission denied: " + error.getMessage(), error);
      }
      Failures.reportFetch(planned.getParent(), error);
      return false;
    }
    if (rules.brokers() == null) {
      throw new SourceUnavailable(
          planned.getParent() + " of the broker that was planned with (cluster " + range.clusterId()
              + ", node " + range.nodeId() + ") is not on this host. Give kafka.bootstrap.servers too (and "
              + "readMode auto), so that tasks on other hosts can fetch",
          null);
    }
    return false;
  }

  /** Closes the present file and opens the next; null after the last. Throws DataLoss, CorruptLog. */
  Opened next() throws IOException {
    close();
    while (directory != null && start < range.end()) {
      long base = bases.floor(start);
      Long following = bases.higher(start);
      // A segment may be listed together with those that it replaces.
      long until = following == null ? range.end() : Math.min(range.end(), following);
      Path path = directory.resolve(segmentName(base));
      if (open(path, base, until)) {
        start = until;
        if (current.position() < current.end()) {
          return current;
        }
        close();
      } else if (++tries > TRIES) {
        Failures.reportLoss(rules, "Cannot read a part of " + range + ": " + path + " was deleted repeatedly.");
        return null;
      } else {
        locate();
      }
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

  /** Finds the partition, and lists its segments. */
  private void locate() throws IOException {
    directory = find();
    if (directory == null) {
      return;
    }
    bases = list();
    if (bases.isEmpty()) {
      Failures.reportLoss(rules, "Cannot read " + range + ": " + directory + " no longer has a segment of it.");
      directory = null;
    } else if (bases.first() > start) {
      long lost = Math.min(bases.first(), range.end()) - 1;
      String offsets = "Cannot read offsets " + start + " to " + lost + " of " + range;
      if (hasRemoteSegments()) {
        throw new SourceUnavailable(
            offsets + ": the broker has moved them to its object store since the query was planned. Run it again, "
                + "with kafka.bootstrap.servers and readMode auto",
            null);
      }
      Failures.reportLoss(rules, offsets + ": the log starts at " + bases.first() + " now.");
      start = bases.first();
    }
  }

  /** Returns whether an object store has segments of the partition, by the file that names them. */
  private boolean hasRemoteSegments() throws IOException {
    Path remote = directory.resolve("mpbroker.remote");
    return Files.exists(remote) && Files.size(remote) > REMOTE_HEAD_BYTES;
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
    String why = isThere ? " belongs to another topic of that name now." : " was deleted.";
    Failures.reportLoss(rules, "Cannot read " + range + ": " + planned + why);
    return null;
  }

  /** Checks the broker, since another host may have another broker's directory at the same path. */
  private static boolean isOfTheBroker(Path metadata, LogRange range) throws IOException {
    Properties given = new Properties();
    try (var text = Files.newBufferedReader(metadata)) {
      given.load(text);
    } catch (NoSuchFileException error) {
      return false;
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

  private TreeSet<Long> list() throws IOException {
    TreeSet<Long> found = new TreeSet<>();
    try (var names = Files.newDirectoryStream(directory, "*" + LOG_SUFFIX)) {
      for (Path name : names) {
        String number = name.getFileName().toString().replace(LOG_SUFFIX, "");
        if (number.matches("\\d{20}")) {
          found.add(Long.parseLong(number));
        }
      }
    }
    return found;
  }

  /** Opens a segment for its batches of [start, until). Returns false if it has to be located again. */
  private boolean open(Path path, long base, long until) throws IOException {
    try {
      OffsetIndex index = new OffsetIndex(path, base);
      FileChannel channel = FileChannel.open(path, StandardOpenOption.READ);
      current = new Opened(path, channel, 0, 0);
      long size = channel.size();
      HeaderReader headers = new HeaderReader(channel, path, size, range);
      long position = reaching(headers, start > base ? index.floor(headers, start) : 0, size, start);
      long end = reaching(headers, Math.max(position, index.floor(headers, until - 1)), size, until - 1);
      if (end + BatchHeader.BYTES <= size) {
        // A batch that the end cuts through is wanted. Batches after it may not be committed.
        BatchHeader last = headers.at(end);
        end += last.baseOffset() < until ? last.length() : 0;
      } else {
        end = size + 1;
      }
      if (end > size) {
        // Listed now, since the file that was opened may have been followed and cleaned after it was listed.
        if (list().higher(base) == null) {
          throw new CorruptLog(
              path + " has " + size + " bytes and ends before offset " + until + ", up to which it was "
                  + "published as readable: it is damaged, or an older copy of the log");
        }
        // Compaction took the last records of a segment that others follow.
        end = size;
      }
      current = new Opened(path, channel, position, end);
      return true;
    } catch (NoSuchFileException error) {
      close();
      return false;
    }
  }

  /** Returns the position of the first batch that reaches the offset; if none does, the end of the last. */
  private static long reaching(HeaderReader headers, long from, long size, long offset) throws IOException {
    long position = from;
    while (position + BatchHeader.BYTES <= size) {
      BatchHeader header = headers.at(position);
      if (header.lastOffset() >= offset) {
        break;
      }
      position += header.length();
      if (position > size) {
        throw headers.corrupt(position - header.length(), BatchHeader.reachesBeyond(size));
      }
    }
    return position;
  }

  private static String segmentName(long base) {
    return String.format("%020d%s", base, LOG_SUFFIX);
  }
}
