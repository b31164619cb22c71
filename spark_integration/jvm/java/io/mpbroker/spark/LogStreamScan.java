package io.mpbroker.spark;

import java.util.HashMap;
import java.util.Map;
import java.util.stream.Stream;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.execution.datasources.v2.python.PythonTable;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** Makes the stream of a query. Each batch decides whether its tasks read in the JVM or in Python. */
final class LogStreamScan implements Scan {
  /** Names the option that makes Python describe its plans for this reader. (Python: source.py.) */
  private static final String DESCRIBE = "describePlans";

  private final CaseInsensitiveStringMap options;
  private final StructType schema;
  private final Scan python;

  LogStreamScan(PythonTable table, CaseInsensitiveStringMap options, StructType schema) {
    this.options = options;
    this.schema = schema;
    Map<String, String> given = new HashMap<>(options.asCaseSensitiveMap());
    given.put(DESCRIBE, "true");
    python = table.newScanBuilder(new CaseInsensitiveStringMap(given)).build();
  }

  @Override
  public MicroBatchStream toMicroBatchStream(String checkpoint) {
    Checkpoint read = new Checkpoint(checkpoint, SparkSession.active().sessionState().newHadoopConf());
    return new LogStream(python.toMicroBatchStream(checkpoint), schema, options, read);
  }

  @Override
  public StructType readSchema() {
    return schema;
  }

  @Override
  public String description() {
    return Progress.describe(options) + " by its JVM reader";
  }

  @Override
  public CustomMetric[] supportedCustomMetrics() {
    return Stream.of(ReadMetrics.all(), python.supportedCustomMetrics())
        .flatMap(Stream::of)
        .toArray(CustomMetric[]::new);
  }
}
