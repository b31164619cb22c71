package io.mpbroker.spark;

import java.util.Arrays;
import java.util.Map;
import java.util.regex.Pattern;
import org.apache.spark.SparkConf;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import scala.Tuple2;

/** Warns of, or refuses, what this source does otherwise than programs expect of Spark's Kafka source. */
final class Cautions {
  private static final String ISOLATION = "kafka.isolation.level";
  private static final String SERVERS = "kafka.bootstrap.servers";
  private static final String PROTOCOL = "kafka.security.protocol";

  /** The prefix of clusters for which Spark obtains delegation tokens. (Spark: KafkaTokenSparkConf.) */
  private static final String CLUSTERS = "spark.kafka.clusters.";

  private static final String OF_A_CLUSTER = ".auth.bootstrap.servers";

  private Cautions() {}

  /** Logs, once per application, that reads without an isolation level leave records out. */
  static void checkRead(CaseInsensitiveStringMap options) {
    if (!options.containsKey(ISOLATION)) {
      Failures.reportOnce(
          "{} is not set: records of aborted and of open transactions are left out, which Spark's Kafka source reads "
              + "by default. Set read_uncommitted to read them, or read_committed to silence this line",
          ISOLATION);
    }
  }

  /**
   * Refuses options that rely on a delegation token of Spark's, which Spark hands to its Kafka source alone.
   *
   * <p>Options with a security protocol have a login of their own; if it is incomplete, Python says so.
   */
  static void checkLogin(Map<String, String> given) {
    CaseInsensitiveStringMap options = new CaseInsensitiveStringMap(given);
    String servers = options.get(SERVERS);
    if (servers == null || options.containsKey(PROTOCOL)) {
      return;
    }
    SparkConf conf = SparkSession.active().sparkContext().conf();
    for (Tuple2<String, String> one : conf.getAllWithPrefix(CLUSTERS)) {
      if (one._1().endsWith(OF_A_CLUSTER)) {
        String cluster = CLUSTERS + one._1().substring(0, one._1().length() - OF_A_CLUSTER.length());
        Pattern target = Pattern.compile(conf.get(cluster + ".target.bootstrap.servers.regex", ".*"));
        if (Arrays.stream(servers.split(",")).anyMatch(address -> target.matcher(address.trim()).matches())) {
          throw new Failures.TokenRefused(cluster, servers);
        }
      }
    }
  }
}
