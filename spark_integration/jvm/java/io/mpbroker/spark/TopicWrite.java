package io.mpbroker.spark;

import org.apache.spark.sql.SaveMode;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.write.SupportsTruncate;
import org.apache.spark.sql.connector.write.V1Write;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.connector.write.streaming.StreamingWrite;
import org.apache.spark.sql.internal.connector.SupportsStreamingUpdateAsAppend;
import org.apache.spark.sql.sources.InsertableRelation;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** Writes topics by the Python sink: the batches of a stream, and the rows of an INSERT INTO. */
record TopicWrite(Write python, CaseInsensitiveStringMap options) implements V1Write {
  /** Builds the write. Rows of a stream in update mode, and in complete mode, are appended, as by Kafka's sink. */
  static final class Builder implements WriteBuilder, SupportsTruncate, SupportsStreamingUpdateAsAppend {
    private final CaseInsensitiveStringMap options;
    private WriteBuilder python;

    Builder(WriteBuilder python, CaseInsensitiveStringMap options) {
      this.python = python;
      this.options = options;
    }

    @Override
    public WriteBuilder truncate() {
      python = ((SupportsTruncate) python).truncate();
      return this;
    }

    @Override
    public Write build() {
      return new TopicWrite(python.build(), options);
    }
  }

  @Override
  public StreamingWrite toStreaming() {
    return python.toStreaming();
  }

  @Override
  public InsertableRelation toInsertableRelation() {
    return (rows, overwrite) -> {
      if (overwrite) {
        throw new Failures.ModeRefused(SaveMode.Overwrite);
      }
      PythonSink.append(rows, options.asCaseSensitiveMap());
    };
  }

  @Override
  public String description() {
    return python.description();
  }

  @Override
  public CustomMetric[] supportedCustomMetrics() {
    return python.supportedCustomMetrics();
  }
}
