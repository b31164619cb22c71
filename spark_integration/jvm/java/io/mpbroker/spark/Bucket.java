package io.mpbroker.spark;

import io.mpbroker.spark.BucketFiles.Piece;
import io.mpbroker.spark.Failures.CorruptLog;
import io.mpbroker.spark.Failures.SourceUnavailable;
import java.io.EOFException;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.net.URI;
import java.util.List;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Options.OpenFileOptions;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.util.functional.FutureIO;
import org.apache.spark.SparkEnv;
import org.apache.spark.deploy.SparkHadoopUtil;

/**
 * Reads objects of a bucket by Hadoop's FileSystem.
 *
 * <p>Endpoint and credentials are those that Hadoop has in the process that reads: of its environment, of
 * core-site.xml, and of the settings spark.hadoop.* that the application was started with. A plan has none.
 */
final class Bucket {
  private static final String S3 = "s3://";
  private static final String S3A = "s3a://";

  /** Each broker's store has objects below it. */
  private static final String LEDGER = "mpbroker/log";

  /** The application whose settings are kept. */
  private static SparkEnv keptFor;

  private static Configuration kept;

  private final FileSystem files;
  private final Path root;

  /** Opens the bucket of a URL. */
  Bucket(String url) throws IOException {
    Configuration settings = settings();
    root = new Path(located(url, settings));
    files = root.getFileSystem(settings);
  }

  /** An object is no longer in the bucket. */
  static final class Missing extends IOException {
    Missing(String text) {
      super(text);
    }
  }

  /** Returns why the JVM cannot read the bucket of a URL; null if it can. */
  static String refusal(String url) {
    Configuration settings = settings();
    String located = located(url, settings);
    try {
      FileSystem.getFileSystemClass(URI.create(located).getScheme(), settings);
      return null;
    } catch (IOException | RuntimeException | LinkageError error) {
      String remedy =
          located.startsWith(S3A)
              ? " (spark.jars.packages=org.apache.hadoop:hadoop-aws, in the version of Spark's Hadoop, brings it)"
              : "";
      return "Hadoop has no FileSystem for " + located + remedy + ": " + error.getMessage();
    }
  }

  /** Returns Hadoop's settings. Making them takes as long as reading a small range. */
  private static synchronized Configuration settings() {
    SparkEnv application = SparkEnv.get();
    if (application != keptFor) {
      kept = SparkHadoopUtil.get().newConfiguration(application.conf());
      keptFor = application;
    }
    return kept;
  }

  /** Returns the URL by which Hadoop knows the bucket. */
  private static String located(String url, Configuration settings) {
    boolean isForS3a = url.startsWith(S3) && settings.get("fs.s3.impl") == null;
    return isForS3a ? S3A + url.substring(S3.length()) : url;
  }

  /** Reads bytes [at, at + length) of a file that is in pieces. Throws Missing, CorruptLog, SourceUnavailable. */
  byte[] read(List<Piece> file, long at, int length) throws IOException {
    byte[] found = new byte[length];
    long begin = 0;
    for (Piece piece : file) {
      long from = Math.max(at, begin);
      long to = Math.min(at + length, begin + piece.length());
      if (from < to) {
        read(piece, from - begin, found, (int) (from - at), (int) (to - from));
      }
      begin += piece.length();
    }
    return found;
  }

  private void read(Piece piece, long at, byte[] into, int place, int length) throws IOException {
    Path path = new Path(root, piece.name());
    long position = piece.position() + at;
    String what = "Cannot read bytes " + position + " to " + (position + length) + " of " + path;
    try (FSDataInputStream object = open(path, position + length)) {
      object.readFully(position, into, place, length);
    } catch (EOFException error) {
      throw new CorruptLog(what + ": the object is shorter");
    } catch (FileNotFoundException error) {
      // A mount or a bucket may be away, with all objects.
      if (files.exists(new Path(root, LEDGER))) {
        throw new Missing(what + ": it is not in the bucket");
      }
      throw new SourceUnavailable(what + ": there is no broker's store at " + root, error);
    } catch (IOException error) {
      throw new SourceUnavailable(what + ": " + error.getMessage(), error);
    }
  }

  /** Opens an object to read up to a position: so S3A asks for no size, and for no bytes beyond. */
  private FSDataInputStream open(Path path, long end) throws IOException {
    return FutureIO.awaitFuture(
        files
            .openFile(path)
            .opt(OpenFileOptions.FS_OPTION_OPENFILE_READ_POLICY, OpenFileOptions.FS_OPTION_OPENFILE_READ_POLICY_RANDOM)
            .opt(OpenFileOptions.FS_OPTION_OPENFILE_LENGTH, Long.toString(end))
            .build());
  }

  /** Returns where a position of a file in pieces is. */
  String where(List<Piece> file, long position) {
    for (Piece piece : file) {
      if (position < piece.length()) {
        return new Path(root, piece.name()) + " is damaged at position " + (piece.position() + position);
      }
      position -= piece.length();
    }
    throw new IllegalArgumentException("the position is beyond the file");
  }
}
