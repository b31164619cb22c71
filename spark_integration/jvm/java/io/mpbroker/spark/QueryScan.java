package io.mpbroker.spark;

import java.util.OptionalLong;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.Statistics;
import org.apache.spark.sql.connector.read.SupportsReportStatistics;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.types.StructType;

/**
 * Becomes the scan of a batch or of a stream, since Spark builds both alike.
 *
 * <p>The first call decides: {@link #toMicroBatchStream} makes it a stream, any other method plans the batch.
 */
final class QueryScan implements Scan, SupportsReportStatistics {
  private final LogScanBuilder builder;
  private Scan decided;

  QueryScan(LogScanBuilder builder) {
    this.builder = builder;
  }

  private Scan decided() {
    if (decided == null) {
      decided = builder.buildBatch();
    }
    return decided;
  }

  @Override
  public MicroBatchStream toMicroBatchStream(String checkpoint) {
    decided = builder.buildStream();
    return decided.toMicroBatchStream(checkpoint);
  }

  @Override
  public StructType readSchema() {
    return decided().readSchema();
  }

  @Override
  public String description() {
    return decided().description() + builder.describePushed();
  }

  @Override
  public Batch toBatch() {
    return decided().toBatch();
  }

  @Override
  public ColumnarSupportMode columnarSupportMode() {
    return decided().columnarSupportMode();
  }

  @Override
  public CustomMetric[] supportedCustomMetrics() {
    return decided().supportedCustomMetrics();
  }

  /** Estimates rows and bytes. The Python scan has no estimate, and Spark assumes its default. */
  @Override
  public Statistics estimateStatistics() {
    return decided() instanceof SupportsReportStatistics known ? known.estimateStatistics() : new Unknown();
  }

  private record Unknown() implements Statistics {
    @Override
    public OptionalLong sizeInBytes() {
      return OptionalLong.empty();
    }

    @Override
    public OptionalLong numRows() {
      return OptionalLong.empty();
    }
  }
}
