package io.mpbroker.spark.fetch;

import org.apache.kafka.common.errors.RetriableException;
import org.apache.kafka.common.protocol.Errors;

/** Reports a request to a broker that failed. The text names the partition or the broker. */
final class BrokerFailure extends Exception {
  private final boolean retriable;

  /** The broker's answer; null if there was none. */
  private final Errors answer;

  private BrokerFailure(String text, boolean retriable, Errors answer, Throwable cause) {
    super(text, cause);
    this.retriable = retriable;
    this.answer = answer;
  }

  /** Describes a broker that cannot be reached or was lost. */
  static BrokerFailure lost(String text) {
    return new BrokerFailure(text, true, null, null);
  }

  /** Describes a failure that another try would repeat. */
  static BrokerFailure fatal(String text, Throwable cause) {
    return new BrokerFailure(text, false, null, cause);
  }

  /** Describes settings that Kafka's client refuses. */
  static BrokerFailure ofSettings(RuntimeException error) {
    StringBuilder why = new StringBuilder("the options kafka.* do not fit together");
    for (Throwable one = error; one != null; one = one.getCause()) {
      why.append(": ").append(one.getMessage());
    }
    return fatal(why.toString(), error);
  }

  /** Describes a broker's answer that is an error. */
  static BrokerFailure answered(String what, Errors answer) {
    String text = what + ": " + answer.message().replaceFirst("\\.$", "") + " (" + answer.name() + ")";
    return new BrokerFailure(text, answer.exception() instanceof RetriableException, answer, null);
  }

  boolean isRetriable() {
    return retriable;
  }

  /** Returns true if the broker does not know the topic, by its name or by its id. */
  boolean isUnknownTopic() {
    return answer == Errors.UNKNOWN_TOPIC_OR_PARTITION
        || answer == Errors.UNKNOWN_TOPIC_ID
        || answer == Errors.INCONSISTENT_TOPIC_ID;
  }
}
