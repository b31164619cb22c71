package io.mpbroker.spark.fetch;

import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.admin.AdminClientConfig;
import org.apache.kafka.common.security.auth.SecurityProtocol;
import org.apache.kafka.common.security.oauthbearer.ClientJwtValidator;

/**
 * Turns a user's settings into those of the Kafka client in this jar.
 *
 * <p>Its classes are renamed, and users write their original names.
 */
final class ClientSettings {
  private static final String RENAMED = SecurityProtocol.class.getName().replaceFirst("common\\..*", "");

  /** The prefix of Kafka's own classes, joined here because the build renames texts that contain it. */
  private static final String ORIGINAL = String.join(".", "org", "apache", "kafka", "");

  private static final String JAAS = "sasl.jaas.config";

  private ClientSettings() {}

  static AdminClientConfig of(List<String> servers, Map<String, String> given) {
    SaslClients.register();
    Map<String, Object> settings = new HashMap<>(given);
    settings.replaceAll((name, value) -> renamed(name, (String) value));
    settings.put("bootstrap.servers", String.join(",", servers));
    // Kafka's default chooses this one in clients, but also loads a library that only brokers need.
    settings.putIfAbsent("sasl.oauthbearer.jwt.validator.class", ClientJwtValidator.class.getName());
    return new AdminClientConfig(settings);
  }

  private static String renamed(String name, String value) {
    if (name.equals(JAAS)) {
      // Each login module begins the text, or follows a semicolon.
      return value.replaceAll("(^|;)(\\s*)" + ORIGINAL.replace(".", "\\."), "$1$2" + RENAMED);
    }
    boolean namesClasses = name.endsWith(".class") || name.endsWith(".classes") || name.endsWith(".providers");
    return namesClasses ? value.replace(ORIGINAL, RENAMED) : value;
  }
}
