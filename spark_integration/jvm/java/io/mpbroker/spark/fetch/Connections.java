package io.mpbroker.spark.fetch;

import java.util.ArrayDeque;
import java.util.Deque;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ScheduledFuture;
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

  /** Identifies a cluster and the login there. */
  record Key(List<String> servers, Map<String, String> settings) {}

  private record Kept(Cluster cluster, ScheduledFuture<?> end) {}

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
    Kept newest = KEPT.containsKey(key) ? KEPT.get(key).poll() : null;
    if (newest == null) {
      return null;
    }
    newest.end().cancel(false);
    return newest.cluster();
  }

  private static synchronized boolean keep(Key key, Cluster cluster) {
    Deque<Kept> clusters = KEPT.computeIfAbsent(key, any -> new ArrayDeque<>());
    if (clusters.size() >= KEPT_MAX) {
      return false;
    }
    var end = CLOSER.schedule(() -> closeIdle(key, cluster), IDLE_MS_MAX, TimeUnit.MILLISECONDS);
    clusters.push(new Kept(cluster, end));
    return true;
  }

  private static synchronized void closeIdle(Key key, Cluster cluster) {
    // Another task may have taken it just now.
    if (KEPT.containsKey(key) && KEPT.get(key).removeIf(one -> one.cluster() == cluster)) {
      cluster.close();
    }
    KEPT.values().removeIf(Deque::isEmpty);
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
    made.setRemoveOnCancelPolicy(true);
    // A process that no longer fetches has no such thread.
    made.setKeepAliveTime(1, TimeUnit.SECONDS);
    made.allowCoreThreadTimeOut(true);
    return made;
  }
}
