package io.mpbroker.spark.fetch;

import java.io.Closeable;
import java.io.InterruptedIOException;
import java.io.Serializable;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.NavigableSet;
import java.util.Objects;
import java.util.Optional;
import java.util.TreeSet;
import org.apache.kafka.clients.ClientResponse;
import org.apache.kafka.common.InvalidRecordException;
import org.apache.kafka.common.IsolationLevel;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.errors.CorruptRecordException;
import org.apache.kafka.common.message.FetchResponseData.AbortedTransaction;
import org.apache.kafka.common.message.FetchResponseData.PartitionData;
import org.apache.kafka.common.message.ListOffsetsRequestData.ListOffsetsPartition;
import org.apache.kafka.common.message.ListOffsetsRequestData.ListOffsetsTopic;
import org.apache.kafka.common.protocol.ApiKeys;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.record.internal.ControlRecordType;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.RecordBatch;
import org.apache.kafka.common.requests.FetchRequest;
import org.apache.kafka.common.requests.FetchResponse;
import org.apache.kafka.common.requests.ListOffsetsRequest;
import org.apache.kafka.common.requests.ListOffsetsResponse;

/**
 * Fetches whole record batches of a partition, by the rules of Python's read_remote (Kafka: CompletedFetch).
 *
 * <p>A topic is known by its id. Brokers without Fetch version 13 are asked for the id after each fetch.
 */
public final class Fetcher implements Closeable {
  private static final int WAIT_MS_MAX = 500;
  private static final short FIRST_VERSION_WITH_IDS = 13;

  private final Settings settings;
  private final Partition partition;
  private final TopicPartition place;
  private final Connections.Key key;
  private final Cluster cluster;
  private Cluster.Asked ahead;
  private ByteBuffer lent;
  private long highWatermark;
  private boolean isClosed;

  /**
   * Says how to reach the brokers. {@code client} has settings by their names in Kafka, passwords among them.
   *
   * <p>A fetch asks for {@code fetchBytes}; a larger batch comes alone. A failed request is sent up to
   * {@code retries} times again, with pauses of {@code retryIntervalMs}.
   */
  public record Settings(
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
  public record Partition(String topic, int number, String topicId, String range) {
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
  public record Batches(ByteBuffer records, long nextOffset, long[][] aborted) {}

  /** Holds the offsets [start, end) that are left of a partition. */
  public record Bounds(long start, long end) {}

  /** Names why records cannot be fetched. */
  public enum Reason {
    /** The offset was deleted or truncated; with old brokers, the topic may also have been created again. */
    OFFSET_OUT_OF_RANGE,
    /** The topic was deleted. Another one may have its name. */
    TOPIC_DELETED,
    DAMAGED,
    UNAVAILABLE
  }

  /** Ends a fetch. */
  public static final class Failed extends Exception {
    public final Reason reason;

    private Failed(Reason reason, String text, Throwable cause) {
      super(text, cause);
      this.reason = reason;
    }
  }

  /** Connects to the brokers, or takes connections that an earlier task has left. */
  public Fetcher(Settings settings, Partition partition) throws Failed {
    this.settings = settings;
    this.partition = partition;
    place = new TopicPartition(partition.topic(), partition.number());
    key = new Connections.Key(settings.servers(), settings.client());
    try {
      cluster = Connections.take(key);
    } catch (BrokerFailure error) {
      throw unavailable(error);
    }
  }

  /**
   * Returns the batches from the offset on. They are valid until the next call.
   *
   * <p>If the range continues up to `end`, the next fetch is sent before this returns.
   */
  public Batches fetch(long offset, long end) throws Failed, InterruptedIOException {
    giveBack();
    Batches found = next(offset);
    if (found.nextOffset() < end) {
      try {
        ahead = start(found.nextOffset());
      } catch (BrokerFailure error) {
        // The next call sends it again, and reports a failure.
        ahead = null;
      }
    }
    return found;
  }

  private Batches next(long offset) throws Failed, InterruptedIOException {
    Cluster.Asked asked = ahead;
    ahead = null;
    if (asked != null) {
      try {
        return taken(asked, offset);
      } catch (BrokerFailure error) {
        if (!error.isRetriable()) {
          throw unavailable(error);
        }
        refresh();
      }
    }
    return ofPlannedTopic(() -> taken(start(offset), offset));
  }

  /**
   * Waits up to `waitMs` ms for batches from the offset on; null if none come. They are valid until the next call.
   */
  public Batches await(long offset, long waitMs) throws Failed, InterruptedIOException {
    giveBack();
    return ofPlannedTopic(() -> arrived(start(offset, (int) Math.min(waitMs, WAIT_MS_MAX)), offset));
  }

  private void giveBack() {
    cluster.memory.giveBack(lent);
    lent = null;
  }

  private Batches ofPlannedTopic(Request<Batches> request) throws Failed, InterruptedIOException {
    return retried(
        () -> {
          try {
            return request.answer();
          } catch (BrokerFailure error) {
            // A new or a deleted topic may be unknown. Under another id it is another topic.
            if (error.isUnknownTopic() && !isPlannedTopic()) {
              throw topicDeleted(error);
            }
            throw error;
          }
        });
  }

  /** Asks for the offsets that can be read now. */
  public Bounds bounds() throws Failed, InterruptedIOException {
    return retried(
        () ->
            new Bounds(
                offset(ListOffsetsRequest.EARLIEST_TIMESTAMP), offset(ListOffsetsRequest.LATEST_TIMESTAMP)));
  }

  /** Sends a request and takes its answer. */
  private interface Request<T> {
    T answer() throws BrokerFailure, Failed, InterruptedIOException;
  }

  private <T> T retried(Request<T> request) throws Failed, InterruptedIOException {
    long begunNs = System.nanoTime();
    for (int retries = 0; ; retries++) {
      try {
        return request.answer();
      } catch (BrokerFailure error) {
        boolean isLate = System.nanoTime() - begunNs >= cluster.timeoutMs() * 1_000_000L;
        if (!error.isRetriable() || retries >= settings.retries() || isLate) {
          throw error.isUnknownTopic() ? topicDeleted(error) : unavailable(error);
        }
      }
      pause(settings.retryIntervalMs());
      refresh();
    }
  }

  /** Looks up the leader. A failure is left to the next request. */
  private void refresh() throws InterruptedIOException {
    try {
      cluster.refresh(place.topic());
    } catch (BrokerFailure error) {
      // The next request reports it.
    }
  }

  private Cluster.Asked start(long offset) throws BrokerFailure, InterruptedIOException {
    return start(offset, WAIT_MS_MAX);
  }

  private Cluster.Asked start(long offset, int waitMs) throws BrokerFailure, InterruptedIOException {
    boolean byId = partition.topicId() != null;
    Uuid id = byId ? Uuid.fromString(partition.topicId()) : Uuid.ZERO_UUID;
    short newest = byId ? ApiKeys.FETCH.latestVersion() : FIRST_VERSION_WITH_IDS - 1;
    FetchRequest.PartitionData wanted =
        new FetchRequest.PartitionData(
            id, offset, FetchRequest.INVALID_LOG_START_OFFSET, settings.fetchBytes(), Optional.empty());
    FetchRequest.Builder request =
        FetchRequest.Builder.forConsumer(newest, waitMs, 1, Map.of(place, wanted))
            .isolationLevel(isolation())
            .setMaxBytes(settings.fetchBytes());
    return cluster.start(cluster.leader(place), request);
  }

  private IsolationLevel isolation() {
    return settings.readCommitted() ? IsolationLevel.READ_COMMITTED : IsolationLevel.READ_UNCOMMITTED;
  }

  /** Returns the batches of an answer, which has some. */
  private Batches taken(Cluster.Asked asked, long offset) throws BrokerFailure, Failed, InterruptedIOException {
    Batches found = arrived(asked, offset);
    if (found != null) {
      return found;
    }
    if (highWatermark <= offset) {
      // The range was planned below the high watermark, so the log was truncated, or the topic created again.
      throw offsetOutOfRange();
    }
    throw BrokerFailure.lost(
        Cluster.address(asked.node) + " sent no record from offset " + offset + " on, reading " + partition);
  }

  /** Returns the batches of an answer; null if it has none from the offset on. */
  private Batches arrived(Cluster.Asked asked, long offset) throws BrokerFailure, Failed, InterruptedIOException {
    ClientResponse answer = cluster.finish(asked);
    lent = cluster.memory.take();
    FetchResponse body = (FetchResponse) answer.responseBody();
    check("fetching " + partition, body.error());
    PartitionData found = only(body, asked.node);
    if (found.errorCode() == Errors.OFFSET_OUT_OF_RANGE.code()) {
      throw offsetOutOfRange();
    }
    check("fetching " + partition, Errors.forCode(found.errorCode()));
    boolean byName = answer.requestHeader().apiVersion() < FIRST_VERSION_WITH_IDS;
    if (byName && partition.topicId() != null && !isPlannedTopic()) {
      throw topicDeleted(null);
    }
    highWatermark = found.highWatermark();
    Batches batches = batches(found);
    return batches.nextOffset() > offset ? batches : null;
  }

  private PartitionData only(FetchResponse body, Node node) throws Failed {
    var topics = body.data().responses();
    if (topics.size() == 1 && topics.get(0).partitions().size() == 1) {
      PartitionData found = topics.get(0).partitions().get(0);
      if (found.partitionIndex() == partition.number()) {
        return found;
      }
    }
    throw new Failed(
        Reason.UNAVAILABLE,
        Cluster.address(node) + " answered a fetch of " + partition + " without that partition. Check that "
            + "kafka.bootstrap.servers leads to Kafka brokers and to nothing that changes their answers",
        null);
  }

  /** Returns the whole batches. A broker may cut the last one. */
  private Batches batches(PartitionData found) throws Failed {
    MemoryRecords records = (MemoryRecords) FetchResponse.recordsOrFail(found);
    Map<Long, NavigableSet<Long>> markers = new HashMap<>();
    List<AbortedTransaction> listed =
        found.abortedTransactions() == null ? List.of() : found.abortedTransactions();
    listed.forEach(one -> markers.put(one.producerId(), new TreeSet<>()));
    int bytes = 0;
    long nextOffset = -1;
    try {
      for (RecordBatch batch : records.batches()) {
        bytes += batch.sizeInBytes();
        nextOffset = batch.nextOffset();
        if (batch.isControlBatch() && markers.containsKey(batch.producerId()) && isAbort(batch)) {
          markers.get(batch.producerId()).add(batch.baseOffset());
        }
      }
    } catch (CorruptRecordException | InvalidRecordException error) {
      throw new Failed(Reason.DAMAGED, error.getMessage(), error);
    }
    List<long[]> aborted = new ArrayList<>();
    for (AbortedTransaction one : listed) {
      Long end = markers.get(one.producerId()).higher(one.firstOffset());
      aborted.add(new long[] {one.producerId(), one.firstOffset(), end == null ? Long.MAX_VALUE : end});
    }
    return new Batches(direct(records.buffer().slice(0, bytes)), nextOffset, aborted.toArray(new long[0][]));
  }

  private static boolean isAbort(RecordBatch batch) {
    var records = batch.iterator();
    return records.hasNext() && ControlRecordType.parse(records.next().key()) == ControlRecordType.ABORT;
  }

  private static ByteBuffer direct(ByteBuffer bytes) {
    return bytes.isDirect() ? bytes : ByteBuffer.allocateDirect(bytes.limit()).put(bytes).flip();
  }

  private long offset(long time) throws BrokerFailure, InterruptedIOException {
    ListOffsetsTopic wanted =
        new ListOffsetsTopic()
            .setName(place.topic())
            .setPartitions(
                List.of(new ListOffsetsPartition().setPartitionIndex(place.partition()).setTimestamp(time)));
    var request = ListOffsetsRequest.Builder.forConsumer(false, isolation()).setTargetTimes(List.of(wanted));
    var answer = cluster.finish(cluster.start(cluster.leader(place), request));
    var found = ((ListOffsetsResponse) answer.responseBody()).topics().get(0).partitions().get(0);
    check("offsets of " + partition, Errors.forCode(found.errorCode()));
    return found.offset();
  }

  private boolean isPlannedTopic() throws BrokerFailure, InterruptedIOException {
    Uuid id = cluster.refresh(place.topic()).topicId();
    return Objects.equals(id.equals(Uuid.ZERO_UUID) ? null : id.toString(), partition.topicId());
  }

  private static void check(String what, Errors error) throws BrokerFailure {
    if (error != Errors.NONE) {
      throw BrokerFailure.answered(what, error);
    }
  }

  private Failed offsetOutOfRange() {
    return new Failed(Reason.OFFSET_OUT_OF_RANGE, "the offset is out of range", null);
  }

  private Failed topicDeleted(Exception cause) {
    return new Failed(Reason.TOPIC_DELETED, "topic " + place.topic() + " was deleted", cause);
  }

  private static Failed unavailable(BrokerFailure error) {
    return new Failed(Reason.UNAVAILABLE, error.getMessage(), error);
  }

  /** Waits before another try. Throws InterruptedIOException if the task is killed. */
  public static void pause(long ms) throws InterruptedIOException {
    try {
      Thread.sleep(ms);
    } catch (InterruptedException error) {
      Thread.currentThread().interrupt();
      throw new InterruptedIOException("the task was killed while it fetched");
    }
  }

  @Override
  public void close() {
    if (!isClosed) {
      isClosed = true;
      cluster.memory.giveBack(lent);
      Connections.giveBack(key, cluster);
    }
  }
}
