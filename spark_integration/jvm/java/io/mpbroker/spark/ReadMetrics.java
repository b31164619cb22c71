package io.mpbroker.spark;

import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.metric.CustomSumMetric;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;

/** Counts what tasks read, for the query's page in Spark's UI. Spark makes objects of the classes by name. */
final class ReadMetrics {
  private ReadMetrics() {}

  static CustomMetric[] all() {
    return new CustomMetric[] {new Bytes(), new RecordsOfFiles(), new RecordsOfBucket(), new RecordsFetched()};
  }

  /** Counts the bytes of record batches as they are stored. */
  public static final class Bytes extends CustomSumMetric {
    static final String NAME = "bytesRead";

    @Override
    public String name() {
      return NAME;
    }

    @Override
    public String description() {
      return "bytes of record batches read";
    }
  }

  /** Counts the records that tasks read from segment files. */
  public static final class RecordsOfFiles extends CustomSumMetric {
    static final String NAME = "recordsFromFiles";

    @Override
    public String name() {
      return NAME;
    }

    @Override
    public String description() {
      return "records read from files";
    }
  }

  /** Counts the records that tasks read from a bucket. */
  public static final class RecordsOfBucket extends CustomSumMetric {
    static final String NAME = "recordsFromBucket";

    @Override
    public String name() {
      return NAME;
    }

    @Override
    public String description() {
      return "records read from the bucket";
    }
  }

  /** Counts the records that tasks fetched from brokers. */
  public static final class RecordsFetched extends CustomSumMetric {
    static final String NAME = "recordsFetched";

    @Override
    public String name() {
      return NAME;
    }

    @Override
    public String description() {
      return "records fetched from brokers";
    }
  }

  /** Holds the value of one task. */
  record Value(String name, long value) implements CustomTaskMetric {}
}
