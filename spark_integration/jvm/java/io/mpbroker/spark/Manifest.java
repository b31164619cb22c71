package io.mpbroker.spark;

import com.fasterxml.jackson.databind.DeserializationFeature;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import io.mpbroker.spark.fetch.Fetcher;
import java.io.IOException;
import java.io.Serializable;
import java.util.ArrayList;
import java.util.List;

/**
 * Holds the plan that Python made for a query: its tasks, and the rules for all of them.
 *
 * <p>{@code declined} is the reason why Python has to read, and null if this reader can. All fields, also of the
 * parts, are named as in the JSON. (Python: reading/manifest.py.)
 */
record Manifest(List<LogRange> tasks, Rules rules, String declined) {
  private static final ObjectMapper JSON =
      new ObjectMapper().disable(DeserializationFeature.FAIL_ON_UNKNOWN_PROPERTIES);

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
    JsonNode root = JSON.readTree(json);
    if (root.hasNonNull("declined")) {
      return forPython(root.get("declined").textValue());
    }
    List<LogRange> tasks = new ArrayList<>();
    for (JsonNode task : root.get("tasks")) {
      tasks.add(JSON.treeToValue(task, LogRange.class));
    }
    return new Manifest(List.copyOf(tasks), JSON.treeToValue(root, Rules.class), null);
  }
}
