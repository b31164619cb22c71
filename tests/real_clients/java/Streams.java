import java.time.Duration;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.state.Stores;

/**
 * Counts words with Kafka Streams, each exactly once, until standard input ends. The counts are kept in memory
 * and in the changelog topic; each new one goes to the topic of counts.
 *
 *     Streams BOOTSTRAP APPLICATION_ID WORDS COUNTS STATE_DIRECTORY
 */
public class Streams {
    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, arguments[0]);
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, arguments[1]);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, arguments[4]);
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        settings.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 50);
        settings.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 0);
        settings.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        settings.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        settings.put("auto.offset.reset", "earliest");
        // A broker that was just killed is asked again at once.
        settings.put("reconnect.backoff.max.ms", 200);

        StreamsBuilder topology = new StreamsBuilder();
        KStream<String, String> words = topology.stream(arguments[2]);
        words.groupBy((key, word) -> word)
            .count(Materialized.<String, Long>as(Stores.inMemoryKeyValueStore("counts"))
                .withKeySerde(Serdes.String()).withValueSerde(Serdes.Long()))
            .toStream()
            .map((word, count) -> KeyValue.pair(word, word + "=" + count))
            .to(arguments[3]);

        KafkaStreams streams = new KafkaStreams(topology.build(), settings);
        streams.start();
        while (System.in.read() >= 0) {
        }
        boolean isStopped = streams.close(Duration.ofSeconds(60));
        System.exit(isStopped ? 0 : 1);
    }
}
