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

  private abstract static class Sum extends CustomSumMetric {
    private final String name;
    private final String description;

    Sum(String name, String description) {
      this.name = name;
      this.description = description;
    }

    @Override
    public String name() {
      return name;
    }

    @Override
    public String description() {
      return description;
    }
  }

  /** Counts the bytes of record batches as they are stored. */
  public static final class Bytes extends Sum {
    static final String NAME = "bytesRead";

    public Bytes() {
      super(NAME, "bytes of record batches read");
    }
  }

  /** Counts the records that tasks read from segment files. */
  public static final class RecordsOfFiles extends Sum {
    static final String NAME = "recordsFromFiles";

    public RecordsOfFiles() {
      super(NAME, "records read from files");
    }
  }

  /** Counts the records that tasks read from a bucket. */
  public static final class RecordsOfBucket extends Sum {
    static final String NAME = "recordsFromBucket";

    public RecordsOfBucket() {
      super(NAME, "records read from the bucket");
    }
  }

  /** Counts the records that tasks fetched from brokers. */
  public static final class RecordsFetched extends Sum {
    static final String NAME = "recordsFetched";

    public RecordsFetched() {
      super(NAME, "records fetched from brokers");
    }
  }

  /** Holds the value of one task. */
  record Value(String name, long value) implements CustomTaskMetric {}
}
