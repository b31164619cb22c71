package io.mpbroker.spark;

import io.mpbroker.spark.Manifest.Rules;
import org.apache.spark.QueryContext;
import org.apache.spark.SparkRuntimeException;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import scala.collection.immutable.Map.Map1;

/** What can go wrong between Spark and a topic: each text says what, where and what to do. */
final class Failures {
  private static final Logger LOG = LoggerFactory.getLogger("mpbroker.spark");

  private Failures() {}

  /** Throws DataLoss, or says on the log that it goes on without. */
  static void reportLoss(Rules rules, String text) {
    if (rules.failOnDataLoss()) {
      throw new DataLoss(text + " " + rules.lossAdvice());
    }
    LOG.warn("{} Going on without them.", text);
  }

  /** Of a class that PySpark knows, with an error condition that is all text. */
  private abstract static class Failure extends SparkRuntimeException {
    Failure(String text, Throwable cause) {
      super("USER_RAISED_EXCEPTION", new Map1<>("errorMessage", text), cause, new QueryContext[0], "");
    }
  }

  /** Records of the wanted range are not there any more, and failOnDataLoss is on. */
  static final class DataLoss extends Failure {
    DataLoss(String text) {
      super(text, null);
    }
  }

  /** Bytes within the readable part of a log are no record batches. */
  static final class CorruptLog extends Failure {
    CorruptLog(String text) {
      super(text, null);
    }
  }

  /** This host does not have the files, or its disk does not give them. */
  static final class SourceUnavailable extends Failure {
    SourceUnavailable(String text, Throwable cause) {
      super(text, cause);
    }
  }

  /** Bytes that are no record, found while one is decoded; whoever knows the place says where. */
  static final class Malformed extends Exception {
    Malformed(String reason) {
      super(reason, null, false, false);
    }
  }
}
