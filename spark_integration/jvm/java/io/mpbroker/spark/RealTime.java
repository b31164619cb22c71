package io.mpbroker.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import io.mpbroker.spark.Failures.OptionRefused;
import io.mpbroker.spark.Manifest.Rules;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.streaming.PartitionOffset;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * Plans the long batches of the real-time trigger: one task a partition, without an end.
 *
 * <p>Spark: KafkaMicroBatchStream.
 */
final class RealTime {
  private static final ObjectMapper JSON = new ObjectMapper();

  private static final List<String> REFUSED =
      List.of(
          "maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxBytesPerTrigger", "maxTriggerDelay", "minPartitions",
          "maxRecordsPerPartition", "endingTimestamp", "mpbroker.bucket");

  private RealTime() {}

  /** Throws OptionRefused if an option bounds batches. */
  static void check(CaseInsensitiveStringMap options) {
    for (String name : REFUSED) {
      if (options.containsKey(name)) {
        throw new OptionRefused(name + " is not compatible with real time mode: remove the option");
      }
    }
  }

  /** Throws OptionRefused if Python has to read, or if there are no brokers to fetch from. */
  static void check(Rules rules) {
    if (rules == null || rules.brokers() == null) {
      throw new OptionRefused(
          "The real-time trigger fetches in the JVM: give kafka.bootstrap.servers as HOST:PORT, readMode auto or "
              + "remote, and no valueFormat. If the log warns that Python reads, that line has the reason");
    }
  }

  /**
   * Plans a task for each partition of `latest`, from its offset in `start` on.
   *
   * <p>`start` and `latest` are offsets in the form of a checkpoint. A new partition, and one of a topic that was
   * created again, begins at its first record. Reports deleted partitions and topics as data loss. With `isEmpty` the
   * tasks end where they begin.
   */
  static InputPartition[] plan(String start, String latest, Rules rules, boolean isEmpty) throws IOException {
    JsonNode reached = JSON.readTree(start);
    JsonNode now = JSON.readTree(latest);
    Map<String, String> oldIds = topicIds(reached);
    Map<String, String> ids = topicIds(now);
    List<InputPartition> tasks = new ArrayList<>();
    // A topic id is a topic without partitions.
    for (var topic : now.properties()) {
      String name = topic.getKey();
      String id = ids.get(name);
      String oldId = oldIds.getOrDefault(name, id);
      boolean isAnother = id != null && !id.equals(oldId);
      for (var partition : topic.getValue().properties()) {
        JsonNode offset = reached.path(name).path(partition.getKey());
        if (isAnother && !offset.isMissingNode()) {
          Failures.reportLoss(
              rules,
              "Topic " + name + " was deleted and recreated: " + name + "-" + partition.getKey() + " was read up to "
                  + offset.asLong() + ".");
        }
        long from = isAnother ? 0 : offset.asLong();
        long end = isEmpty ? from : Long.MAX_VALUE;
        tasks.add(LogRange.fetched(name, Integer.parseInt(partition.getKey()), from, end, id));
      }
    }
    for (var topic : reached.properties()) {
      for (var partition : topic.getValue().properties()) {
        if (now.path(topic.getKey()).path(partition.getKey()).isMissingNode()) {
          Failures.reportLoss(
              rules,
              topic.getKey() + "-" + partition.getKey() + " was deleted after offset " + partition.getValue() + ".");
        }
      }
    }
    return tasks.toArray(new InputPartition[0]);
  }

  /** Returns the id of each topic that has one. (Python: stream_offsets.) */
  private static Map<String, String> topicIds(JsonNode offsets) {
    Map<String, String> found = new TreeMap<>();
    for (var topic : offsets.properties()) {
      String[] named = topic.getKey().split("#", 2);
      if (named.length == 2) {
        found.put(named[0], named[1]);
      }
    }
    return found;
  }

  /** Names the next offset of a partition. */
  record Reached(String topic, int partition, String topicId, long offset) implements PartitionOffset {}

  /** Returns the offsets in the form, and in the order, in which Python writes them. */
  static String merged(PartitionOffset[] ends) {
    Map<String, Map<Integer, Long>> offsets = new TreeMap<>();
    Map<String, String> ids = new TreeMap<>();
    for (PartitionOffset end : ends) {
      Reached one = (Reached) end;
      offsets.computeIfAbsent(one.topic(), name -> new TreeMap<>()).put(one.partition(), one.offset());
      if (one.topicId() != null) {
        ids.put(one.topic(), one.topicId());
      }
    }
    Map<String, Map<Integer, Long>> found = new LinkedHashMap<>(offsets);
    ids.forEach((topic, id) -> found.put(topic + "#" + id, Map.of()));
    return JSON.valueToTree(found).toString();
  }

  /** Makes the readers of the tasks. */
  record Readers(Rules rules, StructType schema) implements PartitionReaderFactory {
    @Override
    public PartitionReader<InternalRow> createReader(InputPartition partition) {
      try {
        return new RealTimeReader((LogRange) partition, rules, schema);
      } catch (IOException error) {
        throw new UncheckedIOException(error);
      }
    }
  }
}
