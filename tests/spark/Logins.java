import io.mpbroker.spark.fetch.Fetcher;
import io.mpbroker.spark.fetch.Relay;
import java.io.FileReader;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;

/**
 * Fetches a partition with the settings of each file, beside a Kafka client with its own names that logs in with
 * the same settings before or after.
 *
 * <p>Arguments: topic, topic id, end offset, then a file for each login. Prints a line for each, which begins with "login: ".
 */
public final class Logins {
  public static void main(String[] arguments) throws Exception {
    Relay.path();
    Fetcher.Partition partition = new Fetcher.Partition(arguments[0], 0, arguments[1], arguments[0] + "-0");
    long end = Long.parseLong(arguments[2]);
    for (String file : List.of(arguments).subList(3, arguments.length)) {
      Properties given = new Properties();
      try (FileReader text = new FileReader(file)) {
        given.load(text);
      }
      boolean isFirst = Boolean.parseBoolean((String) given.remove("kafka.first"));
      String before = isFirst ? kafka(given) : "";
      String ours = fetched(given, partition, end);
      System.out.println("login: " + ours + " " + (isFirst ? before : kafka(given)));
    }
    System.exit(0);
  }

  private static String fetched(Properties given, Fetcher.Partition partition, long end) throws Exception {
    Map<String, String> client = new HashMap<>();
    given.stringPropertyNames().forEach(name -> client.put(name, given.getProperty(name)));
    List<String> servers = List.of(client.remove("bootstrap.servers"));
    long offset = 0;
    try (Fetcher fetcher = new Fetcher(new Fetcher.Settings(servers, client, 1 << 20, 0, 0, true), partition)) {
      while (offset < end) {
        offset = fetcher.fetch(offset, end).nextOffset();
      }
    } catch (Fetcher.Failed error) {
      return error.getMessage();
    }
    return "fetched " + offset;
  }

  private static String kafka(Properties given) throws Exception {
    Properties settings = new Properties();
    settings.putAll(given);
    settings.put("request.timeout.ms", "60000");
    settings.put("default.api.timeout.ms", "60000");
    try (Admin admin = Admin.create(settings)) {
      return "listed " + admin.listTopics().names().get(60, TimeUnit.SECONDS).size();
    } catch (Exception error) {
      return "not listed";
    }
  }
}
