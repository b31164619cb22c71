import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.InvalidProducerEpochException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Transactional producers of Apache Kafka's own client, told what to do line by line: the name of a producer,
 * a command and its arguments. Each line is answered by one: ok, fenced, or failed and why.
 *
 *     NAME open BOOTSTRAP TRANSACTIONAL_ID TIMEOUT_MS
 *     NAME begin
 *     NAME send TOPIC PARTITION VALUE
 *     NAME flush
 *     NAME offsets GROUP TOPIC PARTITION OFFSET
 *     NAME commit
 *     NAME abort
 *     NAME close                                       at once, and says nothing to the broker
 */
public class Transactions {
    private static final Map<String, KafkaProducer<String, String>> PRODUCERS = new HashMap<>();

    public static void main(String[] arguments) throws IOException {
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            System.out.println(answer(line.split(" ")));
        }
        for (KafkaProducer<String, String> left : PRODUCERS.values()) {
            left.close(Duration.ZERO);
        }
    }

    private static String answer(String[] words) {
        try {
            obey(words);
            return "ok";
        } catch (ProducerFencedException | InvalidProducerEpochException error) {
            return "fenced";
        } catch (RuntimeException error) {
            boolean fenced = isFenced(error);
            return fenced ? "fenced" : "failed " + error.toString().replace('\n', ' ');
        }
    }

    /** Also where it is only the cause of what a later call says. */
    private static boolean isFenced(Throwable error) {
        for (Throwable each = error; each != null; each = each.getCause()) {
            if (each instanceof ProducerFencedException || each instanceof InvalidProducerEpochException) {
                return true;
            }
        }
        return false;
    }

    private static void obey(String[] words) {
        String name = words[0];
        KafkaProducer<String, String> producer = PRODUCERS.get(name);
        switch (words[1]) {
            case "open" -> open(name, words[2], words[3], words[4]);
            case "begin" -> producer.beginTransaction();
            case "send" -> producer.send(new ProducerRecord<>(words[2], Integer.valueOf(words[3]), null, words[4]));
            case "flush" -> producer.flush();
            case "offsets" -> producer.sendOffsetsToTransaction(
                Map.of(
                    new TopicPartition(words[3], Integer.parseInt(words[4])),
                    new OffsetAndMetadata(Long.parseLong(words[5]))),
                new ConsumerGroupMetadata(words[2]));
            case "commit" -> producer.commitTransaction();
            case "abort" -> producer.abortTransaction();
            case "close" -> PRODUCERS.remove(name).close(Duration.ZERO);
            default -> throw new IllegalArgumentException(String.join(" ", words));
        }
    }

    private static void open(String name, String bootstrap, String transactionalId, String timeoutMs) {
        KafkaProducer<String, String> producer = new KafkaProducer<>(
            Map.of(
                "bootstrap.servers", bootstrap,
                "transactional.id", transactionalId,
                "transaction.timeout.ms", timeoutMs,
                "linger.ms", "0",
                // A broker that was just killed is asked again at once.
                "reconnect.backoff.max.ms", "200"),
            new StringSerializer(),
            new StringSerializer());
        PRODUCERS.put(name, producer);
        producer.initTransactions();
    }
}
