package io.mpbroker.spark;

import java.io.Closeable;
import java.io.IOException;
import java.io.InterruptedIOException;
import java.io.Serializable;
import java.lang.reflect.InvocationTargetException;
import java.nio.ByteBuffer;
import java.util.List;
import java.util.Map;

/**
 * Fetches whole record batches of a partition from brokers.
 *
 * <p>It is implemented in the package fetch, the only one that knows Kafka's client. A jar that was built without
 * Maven does not have that package.
 */
public interface Fetcher extends Closeable {
  /** Names the class that implements this interface. */
  String IMPLEMENTATION = "io.mpbroker.spark.fetch.KafkaFetcher";

  /** Names the class that connects for Python. */
  String RELAY = "io.mpbroker.spark.fetch.Relay";

  /**
   * Says how to reach the brokers. {@code client} has settings by their names in Kafka, passwords among them.
   *
   * <p>A fetch asks for {@code fetchBytes}; a larger batch comes alone. A failed request is sent up to
   * {@code retries} times again, with pauses of {@code retryIntervalMs}.
   */
  record Settings(
      List<String> servers,
      Map<String, String> client,
      int fetchBytes,
      int retries,
      long retryIntervalMs,
      boolean readCommitted)
      implements Serializable {
    @Override
    public String toString() {
      return "brokers " + servers;
    }
  }

  /** Names a partition. {@code topicId} is null if the brokers have no topic ids; errors name {@code range}. */
  record Partition(String topic, int number, String topicId, String range) {
    @Override
    public String toString() {
      return range;
    }
  }

  /**
   * Holds batches in direct memory, and the first offset after them.
   *
   * <p>{@code aborted} has the aborted transactions with records among them: producer, first and last offset.
   */
  record Batches(ByteBuffer records, long nextOffset, long[][] aborted) {}

  /** Says what is left of a partition: offsets [start, end). */
  record Bounds(long start, long end) {}

  /** Names why records cannot be fetched. */
  enum Reason {
    /** The offset was deleted or truncated; with old brokers, the topic may also have been created again. */
    OFFSET_OUT_OF_RANGE,
    /** The topic was deleted. Another one may have its name. */
    TOPIC_DELETED,
    DAMAGED,
    UNAVAILABLE
  }

  /** Ends a fetch. */
  final class Failed extends Exception {
    final Reason reason;

    public Failed(Reason reason, String text, Throwable cause) {
      super(text, cause);
      this.reason = reason;
    }
  }

  /**
   * Returns the batches from the offset on. They are valid until the next call.
   *
   * <p>If the range continues up to `end`, the next fetch is sent before this returns.
   */
  Batches fetch(long offset, long end) throws Failed, IOException;

  /**
   * Waits up to `waitMs` ms for batches from the offset on; null if none come. They are valid until the next call.
   */
  Batches await(long offset, long waitMs) throws Failed, IOException;

  /** Asks for the offsets that can be read now. */
  Bounds bounds() throws Failed, IOException;

  /** Waits before another try. Throws InterruptedIOException if the task is killed. */
  static void pause(long ms) throws InterruptedIOException {
    try {
      Thread.sleep(ms);
    } catch (InterruptedException error) {
      Thread.currentThread().interrupt();
      throw new InterruptedIOException("the task was killed while it fetched");
    }
  }

  /** Returns true if this jar has Kafka's client. */
  static boolean isPresent() {
    return Fetcher.class.getClassLoader().getResource(IMPLEMENTATION.replace('.', '/') + ".class") != null;
  }

  /** Returns the path of a socket, on which Kafka's client connects to brokers for Python. */
  static String relay() {
    try {
      return (String) Class.forName(RELAY).getMethod("path").invoke(null);
    } catch (ReflectiveOperationException error) {
      throw new IllegalStateException(error);
    }
  }

  /** Connects to the brokers, or takes a connection that an earlier task has left. */
  static Fetcher open(Settings settings, Partition partition) throws Failed {
    try {
      return (Fetcher)
          Class.forName(IMPLEMENTATION)
              .getConstructor(Settings.class, Partition.class)
              .newInstance(settings, partition);
    } catch (InvocationTargetException error) {
      if (error.getCause() instanceof Failed failed) {
        throw failed;
      }
      throw new IllegalStateException(error.getCause());
    } catch (ReflectiveOperationException error) {
      throw new IllegalStateException(error);
    }
  }
}
