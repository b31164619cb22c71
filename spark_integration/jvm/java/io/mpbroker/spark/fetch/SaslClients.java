package io.mpbroker.spark.fetch;

import java.security.Provider;
import java.security.Security;
import java.util.List;
import java.util.Map;
import javax.security.auth.callback.CallbackHandler;
import javax.security.sasl.SaslClient;
import javax.security.sasl.SaslClientFactory;
import javax.security.sasl.SaslException;
import org.apache.kafka.common.security.auth.AuthenticateCallbackHandler;
import org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule;
import org.apache.kafka.common.security.oauthbearer.internals.OAuthBearerSaslClient.OAuthBearerSaslClientFactory;
import org.apache.kafka.common.security.scram.ScramLoginModule;
import org.apache.kafka.common.security.scram.internals.ScramSaslClient.ScramSaslClientFactory;

/**
 * Makes SASL clients for the Kafka client of this jar, and for no other.
 *
 * <p>Kafka's login modules register providers under fixed names, and a JVM uses only the first one of a name.
 * Beside Spark's own Kafka connector, one of the two would get the classes of the other. So this class removes
 * the providers of our copy, and registers one that serves our callback handlers alone.
 */
public final class SaslClients extends Provider {
  private static final List<String> SCRAM = List.of("SCRAM-SHA-256", "SCRAM-SHA-512");
  private static final String OAUTH = "OAUTHBEARER";

  static {
    // The lock of Security's methods: no other client registers its providers while ours have the names.
    synchronized (Security.class) {
      try {
        Class.forName(ScramLoginModule.class.getName());
        Class.forName(OAuthBearerLoginModule.class.getName());
      } catch (ClassNotFoundException error) {
        throw new NoClassDefFoundError(error.getMessage());
      }
      ClassLoader ours = SaslClients.class.getClassLoader();
      for (Provider provider : Security.getProviders()) {
        if (provider.getClass().getName().startsWith("io.mpbroker.") && provider.getClass().getClassLoader() == ours) {
          Security.removeProvider(provider.getName());
        }
      }
      Security.insertProviderAt(new SaslClients(), 1);
    }
  }

  private SaslClients() {
    // Another class loader may have this jar, too.
    super("mpbroker SASL " + System.identityHashCode(SaslClients.class.getClassLoader()), "1", "SASL of mpbroker");
    SCRAM.forEach(mechanism -> put("SaslClientFactory." + mechanism, Factory.class.getName()));
    put("SaslClientFactory." + OAUTH, Factory.class.getName());
  }

  /** Registers the provider, once. */
  static void register() {
    // Loading the class does it.
  }

  /** Returns null for the callback handlers of others: Java then asks the next provider. */
  public static final class Factory implements SaslClientFactory {
    @Override
    public SaslClient createSaslClient(
        String[] mechanisms, String id, String protocol, String server, Map<String, ?> props, CallbackHandler handler)
        throws SaslException {
      if (!(handler instanceof AuthenticateCallbackHandler)) {
        return null;
      }
      SaslClientFactory factory =
          List.of(mechanisms).contains(OAUTH) ? new OAuthBearerSaslClientFactory() : new ScramSaslClientFactory();
      return factory.createSaslClient(mechanisms, id, protocol, server, props, handler);
    }

    @Override
    public String[] getMechanismNames(Map<String, ?> props) {
      return new String[] {SCRAM.get(0), SCRAM.get(1), OAUTH};
    }
  }
}
