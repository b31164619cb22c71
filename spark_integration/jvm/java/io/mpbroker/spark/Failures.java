package io.mpbroker.spark;

import io.mpbroker.spark.Manifest.Rules;
import java.nio.file.Path;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.spark.QueryContext;
import org.apache.spark.SparkRuntimeException;
import org.apache.spark.sql.SaveMode;
import org.apache.spark.sql.classic.SparkSession;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import scala.collection.immutable.Map.Map1;

/** Has the errors and warnings of reads and writes. Each text names the problem, its place and the remedy. */
final class Failures {
  private static final Logger LOG = LoggerFactory.getLogger("mpbroker.spark");

  private static final Set<String> REPORTED = ConcurrentHashMap.newKeySet();

  private Failures() {}

  /** Throws DataLoss if failOnDataLoss is on, and otherwise logs a warning. */
  static void reportLoss(Rules rules, String text) {
    if (rules.failOnDataLoss()) {
      throw new DataLoss(text + " " + rules.lossAdvice());
    }
    LOG.warn("{} Continuing without them.", text);
  }

  /** Logs why Python reads in place of the JVM, once per reason and application. */
  static void reportPython(String reason) {
    if (isNew(reason)) {
      LOG.warn("Python reads, not the faster JVM reader: {}", reason);
    }
  }

  /** Logs, once per directory, that files are on this host and cannot be read. */
  static void reportFetch(Path logDir, Exception error) {
    if (REPORTED.add(logDir.toString())) {
      LOG.warn("Tasks on this host fetch instead of reading files: permission denied: {}", error.getMessage());
    }
  }

  /** Logs a line at INFO, once per application. */
  static void reportOnce(String text, String subject) {
    if (isNew(text)) {
      LOG.info(text, subject);
    }
  }

  /** Returns true at the first call with a text, per application: each stream clones its session. */
  private static boolean isNew(String text) {
    return REPORTED.add(SparkSession.active().sparkContext().applicationId() + text);
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

  /** Neither files nor brokers can be read. */
  static final class SourceUnavailable extends Failure {
    SourceUnavailable(String text, Throwable cause) {
      super(text, cause);
    }
  }

  /** A save mode is not one that Kafka's sink of Spark allows. (Spark: KafkaSourceProvider.) */
  static final class ModeRefused extends Failure {
    ModeRefused(SaveMode mode) {
      super(
          "Save mode " + mode + " not allowed for Kafka. Allowed save modes are Append and ErrorIfExists "
              + "(default): a topic is only ever appended to. Write with .mode(\"append\")",
          null);
    }
  }

  /** An option does not fit the rest of the query. */
  static final class OptionRefused extends Failure {
    OptionRefused(String text) {
      super(text, null);
    }
  }

  /** A read or a write would need a delegation token of Spark's. */
  static final class TokenRefused extends Failure {
    TokenRefused(String cluster, String servers) {
      super(
          cluster + ".* sets up delegation tokens for " + servers + ", and format(\"mpbroker\") does not use tokens of "
              + "Spark's. Give the login with the query: kafka.security.protocol, kafka.sasl.mechanism and "
              + "kafka.sasl.jaas.config (with a token: ScramLoginModule, tokenauth=true). Where none is needed, set "
              + "kafka.security.protocol=PLAINTEXT",
          null);
    }
  }

  /** Bytes are not a record. The decoder throws it; a caller that knows the position adds it. */
  static final class Malformed extends Exception {
    Malformed(String reason) {
      super(reason, null, false, false);
    }
  }
}
