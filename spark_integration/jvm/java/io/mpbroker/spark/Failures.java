package io.mpbroker.spark;

import io.mpbroker.spark.Manifest.Rules;
import org.apache.spark.QueryContext;
import org.apache.spark.SparkRuntimeException;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import scala.collection.immutable.Map.Map1;

/** Has the errors of a read. The text of each names the problem, its place and the remedy. */
final class Failures {
  private static final Logger LOG = LoggerFactory.getLogger("mpbroker.spark");

  private Failures() {}

  /** Throws DataLoss if failOnDataLoss is on, and otherwise logs a warning. */
  static void reportLoss(Rules rules, String text) {
    if (rules.failOnDataLoss()) {
      throw new DataLoss(text + " " + rules.lossAdvice());
    }
    LOG.warn("{} Continuing without them.", text);
  }

  /** Extends a class that PySpark knows, with an error condition whose message is the text alone. */
  private abstract static class Failure extends SparkRuntimeException {
    Failure(String text, Throwable cause) {
      super("USER_RAISED_EXCEPTION", new Map1<>("errorMessage", text), cause, new QueryContext[0], "");
    }
  }

  /** Records of the wanted range no longer exist, and failOnDataLoss is on. */
  static final class DataLoss extends Failure {
    DataLoss(String text) {
      super(text, null);
    }
  }

  /** Bytes within the readable part of a log are not record batches. */
  static final class CorruptLog extends Failure {
    CorruptLog(String text) {
      super(text, null);
    }
  }

  /** This host does not have the files, or its disk cannot read them. */
  static final class SourceUnavailable extends Failure {
    SourceUnavailable(String text, Throwable cause) {
      super(text, cause);
    }
  }

  /** Bytes are not a record. The decoder throws it; a caller that knows the position adds it. */
  static final class Malformed extends Exception {
    Malformed(String reason) {
      super(reason, null, false, false);
    }
  }
}
