package io.mpbroker.spark.fetch;

import java.io.Closeable;
import java.io.InterruptedIOException;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.ApiVersions;
import org.apache.kafka.clients.ClientResponse;
import org.apache.kafka.clients.ClientUtils;
import org.apache.kafka.clients.ManualMetadataUpdater;
import org.apache.kafka.clients.MetadataRecoveryStrategy;
import org.apache.kafka.clients.NetworkClient;
import org.apache.kafka.clients.admin.AdminClientConfig;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.AuthenticationException;
import org.apache.kafka.common.memory.MemoryPool;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.network.Selector;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.requests.AbstractRequest;
import org.apache.kafka.common.requests.MetadataRequest;
import org.apache.kafka.common.requests.MetadataResponse;
import org.apache.kafka.common.requests.MetadataResponse.TopicMetadata;
import org.apache.kafka.common.utils.LogContext;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.common.utils.Utils;

/**
 * Sends requests to the brokers of a cluster, and knows the leaders of partitions (Kafka: NetworkClient).
 *
 * <p>One thread uses it, with one request at a time.
 */
final class Cluster implements Closeable {
  private static final String ADVICE = ": check kafka.bootstrap.servers and the broker's advertised.listeners";
  private static final int ANSWER_BYTES_MAX = 1 << 30;

  final ReceiveMemory memory = new ReceiveMemory();
  private final Time time = Time.SYSTEM;
  private final Metrics metrics = new Metrics(time);
  private final NetworkClient client;
  private final List<Node> bootstrap = new ArrayList<>();
  private final Map<TopicPartition, Node> leaders = new HashMap<>();
  private final long expiresMs;
  private final int timeoutMs;
  private List<Node> nodes = List.of();
  private boolean isBroken;

  /** Holds a request that was sent, and its answer when that has come. */
  static final class Asked {
    final Node node;
    private ClientResponse answer;

    private Asked(Node node) {
      this.node = node;
    }
  }

  Cluster(List<String> servers, Map<String, String> settings) throws BrokerFailure {
    Thread thread = Thread.currentThread();
    ClassLoader before = thread.getContextClassLoader();
    // Where Kafka and JAAS look for classes that settings name.
    thread.setContextClassLoader(Cluster.class.getClassLoader());
    try {
      AdminClientConfig config = ClientSettings.of(servers, settings);
      timeoutMs = config.getInt(AdminClientConfig.REQUEST_TIMEOUT_MS_CONFIG);
      expiresMs = time.milliseconds() + config.getLong(AdminClientConfig.METADATA_MAX_AGE_CONFIG);
      for (String server : servers) {
        bootstrap.add(new Node(-1 - bootstrap.size(), Utils.getHost(server), Utils.getPort(server)));
      }
      client = connected(config, new LogContext("[mpbroker] "));
    } catch (RuntimeException error) {
      metrics.close();
      throw BrokerFailure.ofSettings(error);
    } finally {
      thread.setContextClassLoader(before);
    }
  }

  /** Makes connections with the settings. Throws RuntimeException if they do not fit together. */
  static Selector selector(AdminClientConfig config, Metrics metrics, MemoryPool memory, LogContext log) {
    return new Selector(
        ANSWER_BYTES_MAX,
        config.getLong(AdminClientConfig.CONNECTIONS_MAX_IDLE_MS_CONFIG),
        metrics,
        Time.SYSTEM,
        "mpbroker",
        Map.of(),
        false,
        false,
        ClientUtils.createChannelBuilder(config, Time.SYSTEM, log),
        memory,
        log);
  }

  private NetworkClient connected(AdminClientConfig config, LogContext log) {
    return new NetworkClient(
        selector(config, metrics, memory, log),
        new ManualMetadataUpdater(),
        config.getString(AdminClientConfig.CLIENT_ID_CONFIG),
        1,
        config.getLong(AdminClientConfig.RECONNECT_BACKOFF_MS_CONFIG),
        config.getLong(AdminClientConfig.RECONNECT_BACKOFF_MAX_MS_CONFIG),
        config.getInt(AdminClientConfig.SEND_BUFFER_CONFIG),
        config.getInt(AdminClientConfig.RECEIVE_BUFFER_CONFIG),
        timeoutMs,
        config.getLong(AdminClientConfig.SOCKET_CONNECTION_SETUP_TIMEOUT_MS_CONFIG),
        config.getLong(AdminClientConfig.SOCKET_CONNECTION_SETUP_TIMEOUT_MAX_MS_CONFIG),
        time,
        true,
        new ApiVersions(),
        log,
        MetadataRecoveryStrategy.NONE);
  }

  /** Returns how long an answer may take. */
  int timeoutMs() {
    return timeoutMs;
  }

  /** Returns true if no answer is awaited, and leaders and certificates were looked up recently. */
  boolean isReusable() {
    return !isBroken && client.inFlightRequestCount() == 0 && time.milliseconds() < expiresMs;
  }

  /** Returns the partition's leader. Asks for it if it is not known. */
  Node leader(TopicPartition partition) throws BrokerFailure, InterruptedIOException {
    if (!leaders.containsKey(partition)) {
      refresh(partition.topic());
    }
    Node leader = leaders.get(partition);
    if (leader == null) {
      throw BrokerFailure.answered("partition " + partition, Errors.LEADER_NOT_AVAILABLE);
    }
    return leader;
  }

  /** Looks up the topic, and the leaders of its partitions. */
  TopicMetadata refresh(String topic) throws BrokerFailure, InterruptedIOException {
    MetadataResponse answer = (MetadataResponse) askAny(new MetadataRequest.Builder(List.of(topic), false));
    nodes = List.copyOf(answer.brokers());
    TopicMetadata found = answer.topicMetadata().iterator().next();
    leaders.keySet().removeIf(one -> one.topic().equals(topic));
    if (found.error() != Errors.NONE) {
      throw BrokerFailure.answered("topic " + topic, found.error());
    }
    for (var part : found.partitionMetadata()) {
      part.leaderId.map(answer.brokersById()::get).ifPresent(node -> leaders.put(part.topicPartition, node));
    }
    return found;
  }

  private Object askAny(AbstractRequest.Builder<?> request) throws BrokerFailure, InterruptedIOException {
    List<Node> candidates = new ArrayList<>(nodes);
    candidates.addAll(bootstrap);
    BrokerFailure failed = null;
    for (Node node : candidates) {
      try {
        return finish(start(node, request)).responseBody();
      } catch (BrokerFailure error) {
        if (!error.isRetriable()) {
          throw error;
        }
        failed = error;
      }
    }
    throw failed;
  }

  /** Sends a request as soon as the broker takes one. */
  Asked start(Node node, AbstractRequest.Builder<?> request) throws BrokerFailure, InterruptedIOException {
    awaitReady(node);
    Asked asked = new Asked(node);
    long now = time.milliseconds();
    client.send(
        client.newClientRequest(node.idString(), request, now, true, timeoutMs, answer -> asked.answer = answer), now);
    poll(0);
    return asked;
  }

  /** Waits for the answer. */
  ClientResponse finish(Asked asked) throws BrokerFailure, InterruptedIOException {
    while (asked.answer == null) {
      poll(timeoutMs);
    }
    ClientResponse answer = asked.answer;
    if (answer.authenticationException() != null) {
      throw refused(asked.node, answer.authenticationException());
    }
    if (answer.wasTimedOut()) {
      throw BrokerFailure.lost(address(asked.node) + " did not answer within " + timeoutMs / 1000.0 + " s");
    }
    if (answer.wasDisconnected()) {
      throw BrokerFailure.lost("the connection to " + address(asked.node) + " was lost");
    }
    if (answer.versionMismatch() != null) {
      throw BrokerFailure.fatal(
          address(asked.node) + " is too old: " + answer.versionMismatch().getMessage(), answer.versionMismatch());
    }
    return answer;
  }

  private void awaitReady(Node node) throws BrokerFailure, InterruptedIOException {
    long deadlineMs = time.milliseconds() + timeoutMs;
    boolean tried = false;
    // Notices a connection that has ended.
    poll(0);
    while (true) {
      long now = time.milliseconds();
      // The backoff after an earlier connection is no failure of this one.
      boolean tries = client.connectionDelay(node, now) == 0;
      if (client.ready(node, now)) {
        return;
      }
      tried |= tries;
      if (tried && client.authenticationException(node) != null) {
        throw refused(node, client.authenticationException(node));
      }
      if (tried && client.connectionFailed(node)) {
        throw BrokerFailure.lost("cannot connect to " + address(node) + ADVICE);
      }
      if (now >= deadlineMs) {
        throw BrokerFailure.lost(address(node) + " was not ready for a request within " + timeoutMs / 1000.0 + " s");
      }
      poll(Math.min(deadlineMs - now, Math.max(client.pollDelayMs(node, now), 1)));
    }
  }

  private void poll(long waitMs) throws BrokerFailure, InterruptedIOException {
    if (Thread.currentThread().isInterrupted()) {
      throw new InterruptedIOException("the task was killed while it fetched");
    }
    try {
      client.poll(waitMs, time.milliseconds());
    } catch (RuntimeException error) {
      isBroken = true;
      throw BrokerFailure.fatal("a broker's answer is not of Kafka's protocol: " + error + ADVICE, error);
    }
  }

  private static BrokerFailure refused(Node node, AuthenticationException error) {
    return BrokerFailure.fatal(address(node) + ": authentication failed: " + error.getMessage(), error);
  }

  static String address(Node node) {
    return node.host() + ":" + node.port();
  }

  @Override
  public void close() {
    client.close();
    metrics.close();
  }
}
