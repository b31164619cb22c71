package io.mpbroker.spark;

import io.mpbroker.spark.Failures.SourceUnavailable;
import io.mpbroker.spark.fetch.Relay;
import java.io.IOException;
import java.io.InputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.regex.Pattern;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** Lets Kafka's client in this jar log in for the planning Python process where Python's own client cannot. */
final class Logins {
  /** Names the option with the path of the relay's socket. (Python: reading/options.py.) */
  private static final String RELAY = "mpbroker.relay";

  private static final Pattern ONLY_OF_KAFKA =
      Pattern.compile(
          "kafka\\.(sasl\\.(oauthbearer|kerberos|login|client)\\..*|security\\.providers|ssl\\.provider"
              + "|ssl\\.(engine|keymanager|trustmanager|secure)\\..*)");
  private static final Pattern SASL = Pattern.compile("(?i)SASL_.*");
  private static final Pattern OTHER_MECHANISMS = Pattern.compile("(?i)GSSAPI|OAUTHBEARER");
  /** The first bytes of each Java keystore. */
  private static final byte[] JKS = {(byte) 0xfe, (byte) 0xed, (byte) 0xfe, (byte) 0xed};

  private Logins() {}

  /** Returns the options, with the path of the relay if Python needs it. */
  static CaseInsensitiveStringMap relayed(Map<String, String> options) {
    CaseInsensitiveStringMap given = new CaseInsensitiveStringMap(options);
    if (!needsRelay(given)) {
      return given;
    }
    Map<String, String> more = new HashMap<>(given.asCaseSensitiveMap());
    try {
      more.put(RELAY, Relay.path());
    } catch (IOException error) {
      throw new SourceUnavailable("The driver cannot listen on a socket, for the login: " + error.getMessage(), error);
    }
    return new CaseInsensitiveStringMap(more);
  }

  private static boolean needsRelay(CaseInsensitiveStringMap options) {
    String named = options.getOrDefault("kafka.sasl.mechanisms", "GSSAPI");
    String mechanism = options.getOrDefault("kafka.sasl.mechanism", named);
    return SASL.matcher(options.getOrDefault("kafka.security.protocol", "")).matches()
            && OTHER_MECHANISMS.matcher(mechanism).matches()
        || options.keySet().stream().anyMatch(name -> ONLY_OF_KAFKA.matcher(name).matches())
        || isJks(options.get("kafka.ssl.truststore.location"))
        || isJks(options.get("kafka.ssl.keystore.location"));
  }

  private static boolean isJks(String location) {
    if (location == null) {
      return false;
    }
    try (InputStream store = Files.newInputStream(Path.of(location))) {
      return Arrays.equals(store.readNBytes(JKS.length), JKS);
    } catch (IOException error) {
      // Python says what is wrong with it.
      return false;
    }
  }
}
