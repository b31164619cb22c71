package io.mpbroker.spark;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.LongSummaryStatistics;
import java.util.Map;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** Describes a source in the progress of a query, in the form of Kafka's source. */
final class Progress {
  private static final ObjectMapper JSON = new ObjectMapper();

  private Progress() {}

  /** Returns for example {@code mpbroker[Subscribe[orders]]}. (Spark: ConsumerStrategy.toString.) */
  static String describe(CaseInsensitiveStringMap options) {
    String topics;
    if (options.containsKey("subscribe")) {
      List<String> named =
          Arrays.stream(options.get("subscribe").split(",")).map(String::trim).filter(one -> !one.isEmpty()).toList();
      topics = "Subscribe" + named;
    } else if (options.containsKey("subscribePattern")) {
      topics = "SubscribePattern[" + options.get("subscribePattern").trim() + "]";
    } else {
      topics = "Assign" + partitions(options.getOrDefault("assign", "{}"));
    }
    return Source.NAME + "[" + topics + "]";
  }

  private static List<String> partitions(String assign) {
    List<String> found = new ArrayList<>();
    parse(assign)
        .properties()
        .forEach(topic -> topic.getValue().forEach(one -> found.add(topic.getKey() + "-" + one.asText())));
    return found;
  }

  /**
   * Returns how many offsets the partitions are behind their latest offsets: the least, the most, and the average.
   *
   * <p>Both arguments are offsets as they are in a checkpoint. Returns an empty map if there are no partitions.
   */
  static Map<String, String> lag(String consumed, String latest) {
    JsonNode reached = parse(consumed);
    LongSummaryStatistics behind = new LongSummaryStatistics();
    // A topic id is a topic without partitions.
    parse(latest)
        .properties()
        .forEach(
            topic ->
                topic
                    .getValue()
                    .properties()
                    .forEach(
                        one ->
                            behind.accept(
                                one.getValue().asLong()
                                    - reached.path(topic.getKey()).path(one.getKey()).asLong())));
    return behind.getCount() == 0
        ? Map.of()
        : Map.of(
            "minOffsetsBehindLatest", Long.toString(behind.getMin()),
            "maxOffsetsBehindLatest", Long.toString(behind.getMax()),
            "avgOffsetsBehindLatest", Double.toString(behind.getAverage()));
  }

  private static JsonNode parse(String json) {
    try {
      return JSON.readTree(json);
    } catch (JsonProcessingException error) {
      throw new IllegalArgumentException(error);
    }
  }
}
