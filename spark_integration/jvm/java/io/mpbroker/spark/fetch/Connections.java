package io.mpbroker.spark.fetch;

import java.util.ArrayDeque;
import java.util.Deque;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.TimeUnit;

/**
 * Keeps connections to brokers for the next tasks of this process, as Python's connections do.
 *
 * <p>Without them, a task of milliseconds would connect, log in and look up leaders.
 */
final class Connections {
  private static final long IDLE_MS_MAX = 60_000;
  private static final int KEPT_MAX = 4;
  private static final Map<Key, Deque<Kept>> KEPT = new HashMap<>();
  private static final ScheduledThreadPoolExecutor CLOSER = closer();
  private static boolean isCloserWaiting;

  /** Identifies a cluster and the login there. */
  record Key(List<String> servers, Map<String, String> settings) {}

  private record Kept(Cluster cluster, long sinceMs) {
    boolean isIdle() {
      return nowMs() - sinceMs >= IDLE_MS_MAX;
    }
  }

  private Connections() {}

  /** Returns connections for the caller's own use, until it gives them back. */
  static Cluster take(Key key) throws BrokerFailure {
    Cluster found;
    while ((found = kept(key)) != null) {
      if (found.isReusable()) {
        return found;
      }
      found.close();
    }
    return new Cluster(key.servers(), key.settings());
  }

  /** Keeps the connections, or closes them if an answer is awaited or enough are kept. */
  static void giveBack(Key key, Cluster cluster) {
    if (!cluster.isReusable() || !keep(key, cluster)) {
      cluster.close();
    }
  }

  private static synchronized Cluster kept(Key key) {
    Deque<Kept> clusters = KEPT.get(key);
    return clusters == null || clusters.isEmpty() ? null : clusters.pop().cluster();
  }

  private static synchronized boolean keep(Key key, Cluster cluster) {
    Deque<Kept> clusters = KEPT.computeIfAbsent(key, any -> new ArrayDeque<>());
    if (clusters.size() >= KEPT_MAX) {
      return false;
    }
    clusters.push(new Kept(cluster, nowMs()));
    awaitIdle();
    return true;
  }

  private static synchronized void closeIdle() {
    isCloserWaiting = false;
    for (Deque<Kept> clusters : KEPT.values()) {
      while (!clusters.isEmpty() && clusters.peekLast().isIdle()) {
        clusters.pollLast().cluster().close();
      }
    }
    KEPT.values().removeIf(Deque::isEmpty);
    if (!KEPT.isEmpty()) {
      awaitIdle();
    }
  }

  private static void awaitIdle() {
    if (!isCloserWaiting) {
      isCloserWaiting = true;
      CLOSER.schedule(Connections::closeIdle, IDLE_MS_MAX, TimeUnit.MILLISECONDS);
    }
  }

  private static ScheduledThreadPoolExecutor closer() {
    ScheduledThreadPoolExecutor made =
        new ScheduledThreadPoolExecutor(
            1,
            work -> {
              Thread thread = new Thread(work, "mpbroker-idle-connections");
              thread.setDaemon(true);
              return thread;
            });
    // A process that no longer fetches has no such thread.
    made.setKeepAliveTime(1, TimeUnit.SECONDS);
    made.allowCoreThreadTimeOut(true);
    return made;
  }

  private static long nowMs() {
    return System.nanoTime() / 1_000_000;
  }
}
