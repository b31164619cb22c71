package io.mpbroker.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import io.mpbroker.spark.fetch.Fetcher;
import java.io.IOException;
import java.io.Serializable;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;

/**
 * Holds the plan that Python made for a query: its tasks, and the rules for all of them.
 *
 * <p>{@code declined} is the reason why Python has to read, and null if this reader can.
 */
record Manifest(List<LogRange> tasks, Rules rules, String declined) {
  /**
   * Holds the options that tasks need.
   *
   * <p>{@code lossAdvice} is the last part of each DataLoss's text. {@code brokers} is null if only files may be
   * read.
   */
  record Rules(boolean failOnDataLoss, boolean checkCrcs, String lossAdvice, Fetcher.Settings brokers)
      implements Serializable {}

  static Manifest forPython(String reason) {
    return new Manifest(List.of(), null, reason);
  }

  static Manifest parse(byte[] json) throws IOException {
    JsonNode root = new ObjectMapper().readTree(json);
    if (root.hasNonNull("declined")) {
      return forPython(root.get("declined").textValue());
    }
    List<LogRange> tasks = new ArrayList<>();
    root.get("tasks").forEach(task -> tasks.add(range(task)));
    Rules rules =
        new Rules(
            root.get("failOnDataLoss").booleanValue(),
            root.get("checkCrcs").booleanValue(),
            root.get("lossAdvice").textValue(),
            brokers(root.get("brokers")));
    return new Manifest(List.copyOf(tasks), rules, null);
  }

  private static Fetcher.Settings brokers(JsonNode given) {
    if (given.isNull()) {
      return null;
    }
    ArrayList<String> servers = new ArrayList<>();
    given.get("servers").forEach(server -> servers.add(server.textValue()));
    HashMap<String, String> client = new HashMap<>();
    JsonNode settings = given.get("client");
    settings.fieldNames().forEachRemaining(name -> client.put(name, settings.get(name).textValue()));
    return new Fetcher.Settings(
        servers,
        client,
        given.get("fetchBytes").intValue(),
        given.get("retries").intValue(),
        given.get("retryIntervalMs").longValue(),
        given.get("readCommitted").booleanValue());
  }

  private static LogRange range(JsonNode task) {
    ArrayList<String> places = new ArrayList<>();
    task.get("places").forEach(place -> places.add(place.textValue()));
    return new LogRange(
        task.get("topic").textValue(),
        task.get("partition").intValue(),
        task.get("start").longValue(),
        task.get("end").longValue(),
        task.get("topicId").textValue(),
        task.get("clusterId").textValue(),
        task.get("nodeId").textValue(),
        places,
        task.get("bytes").longValue(),
        aborted(task.get("aborted")));
  }

  /** Reads the aborted transactions; the node is null for readers that return aborted records, too. */
  private static AbortedRanges aborted(JsonNode found) {
    if (found.isNull()) {
      return AbortedRanges.NOT_WANTED;
    }
    long[][] ranges = new long[found.size()][];
    for (int i = 0; i < ranges.length; i++) {
      ranges[i] = longs(found.get(i));
    }
    return new AbortedRanges(ranges);
  }

  private static long[] longs(JsonNode array) {
    long[] numbers = new long[array.size()];
    for (int i = 0; i < numbers.length; i++) {
      numbers[i] = array.get(i).longValue();
    }
    return numbers;
  }
}
