import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Proxy;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.message.ConsumerGroupHeartbeatRequestData;
import org.apache.kafka.coordinator.common.runtime.CoordinatorMetadataImage;
import org.apache.kafka.coordinator.group.api.assignor.ConsumerGroupPartitionAssignor;
import org.apache.kafka.coordinator.group.api.assignor.MemberAssignment;
import org.apache.kafka.coordinator.group.api.assignor.SubscribedTopicDescriber;
import org.apache.kafka.coordinator.group.api.assignor.SubscriptionType;
import org.apache.kafka.coordinator.group.assignor.RangeAssignor;
import org.apache.kafka.coordinator.group.assignor.UniformAssignor;
import org.apache.kafka.coordinator.group.modern.Assignment;
import org.apache.kafka.coordinator.group.modern.GroupSpecImpl;
import org.apache.kafka.coordinator.group.modern.MemberState;
import org.apache.kafka.coordinator.group.modern.MemberSubscriptionAndAssignmentImpl;
import org.apache.kafka.coordinator.group.modern.consumer.ConsumerGroupMember;
import org.apache.kafka.coordinator.group.modern.consumer.CurrentAssignmentBuilder;

/**
 * What the classes of Apache Kafka's group coordinator decide.
 *
 * A line of standard input is a case, a JSON object. A line of standard output is the answer, or {"error": CLASS} if
 * Kafka throws. Topics are ids as Kafka writes them (TOPIC), PARTITIONS is {TOPIC: [NUMBER]}, EPOCHS is
 * {TOPIC: {NUMBER: EPOCH}}. Kafka is given collections that keep the order of the JSON.
 *
 *     {"kind": "assign", "assignor": "range" or "uniform", "homogeneous": BOOLEAN, "topics": {TOPIC: COUNT},
 *      "members": {MEMBER: {"instance": STRING or null, "topics": [TOPIC], "assigned": PARTITIONS}}}
 *     {MEMBER: PARTITIONS}                             members may be missing
 *
 *     {"kind": "reconcile", "state": NAME, "epoch": EPOCH, "previous": EPOCH, "assigned": EPOCHS,
 *      "revoking": EPOCHS, "target_epoch": EPOCH, "target": PARTITIONS, "topics": [TOPIC],
 *      "changed": BOOLEAN, "owned": PARTITIONS or null, "owners": EPOCHS}
 *     {"state", "epoch", "previous", "assigned", "revoking"}
 *                                                      topics: the subscribed ones; changed: that these changed in
 *                                                      this heartbeat; owned: what the client says it has; owners:
 *                                                      the epochs of partitions that members have, this one included
 */
public class GroupOracle {
    private static final ObjectMapper JSON = new ObjectMapper();

    public static void main(String[] none) throws IOException {
        BufferedReader cases = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream answers = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        for (String line = cases.readLine(); line != null; line = cases.readLine()) {
            JsonNode given = JSON.readTree(line);
            Object answer;
            try {
                answer = answer(given);
            } catch (RuntimeException error) {
                answer = Map.of("error", error.getClass().getSimpleName());
            }
            answers.println(JSON.writeValueAsString(answer));
        }
        answers.flush();
    }

    private static Object answer(JsonNode given) {
        String kind = given.get("kind").textValue();
        switch (kind) {
            case "assign":
                return assign(given);
            case "reconcile":
                return reconcile(given);
            default:
                throw new AssertionError("no such kind: " + kind);
        }
    }

    // ---- assign

    private static Map<String, Map<String, Set<Integer>>> assign(JsonNode given) {
        Map<String, MemberSubscriptionAndAssignmentImpl> members = new LinkedHashMap<>();
        Map<Uuid, Map<Integer, String>> owners = new LinkedHashMap<>();
        given.get("members").fields().forEachRemaining(each -> {
            JsonNode member = each.getValue();
            Map<Uuid, Set<Integer>> assigned = partitions(member.get("assigned"));
            assigned.forEach((topic, numbers) -> numbers.forEach(number ->
                owners.computeIfAbsent(topic, none -> new LinkedHashMap<>()).put(number, each.getKey())));
            members.put(each.getKey(), new MemberSubscriptionAndAssignmentImpl(
                Optional.empty(), Optional.ofNullable(member.get("instance").textValue()),
                topics(member.get("topics")), new Assignment(assigned)));
        });
        SubscriptionType type = given.get("homogeneous").booleanValue()
            ? SubscriptionType.HOMOGENEOUS : SubscriptionType.HETEROGENEOUS;
        ConsumerGroupPartitionAssignor assignor = given.get("assignor").textValue().equals("range")
            ? new RangeAssignor() : new UniformAssignor();
        Map<String, MemberAssignment> assigned =
            assignor.assign(new GroupSpecImpl(members, type, owners), describer(given.get("topics"))).members();
        Map<String, Map<String, Set<Integer>>> answer = new LinkedHashMap<>();
        assigned.forEach((member, assignment) -> answer.put(member, texts(assignment.partitions())));
        return answer;
    }

    private static SubscribedTopicDescriber describer(JsonNode counts) {
        return new SubscribedTopicDescriber() {
            @Override
            public int numPartitions(Uuid topic) {
                return counts.path(topic.toString()).asInt(-1);
            }

            @Override
            public Set<String> racksForPartition(Uuid topic, int number) {
                return Set.of();
            }
        };
    }

    // ---- reconcile

    private static Map<String, Object> reconcile(JsonNode given) {
        List<String> names = new ArrayList<>();
        given.get("topics").forEach(topic -> names.add(topic.textValue()));
        Map<Uuid, Map<Integer, Integer>> owners = epochs(given.get("owners"));
        ConsumerGroupMember member = new CurrentAssignmentBuilder(
            new ConsumerGroupMember.Builder("member")
                .setState(MemberState.valueOf(given.get("state").textValue()))
                .setMemberEpoch(given.get("epoch").intValue())
                .setPreviousMemberEpoch(given.get("previous").intValue())
                .setSubscribedTopicNames(names)
                .setAssignedPartitions(epochs(given.get("assigned")))
                .setPartitionsPendingRevocation(epochs(given.get("revoking")))
                .build())
            .withMetadataImage(image())
            .withTargetAssignment(
                given.get("target_epoch").intValue(), new Assignment(partitions(given.get("target"))))
            .withHasSubscriptionChanged(given.get("changed").booleanValue())
            .withCurrentPartitionEpoch(
                (topic, number) -> owners.getOrDefault(topic, Map.of()).getOrDefault(number, -1))
            .withOwnedTopicPartitions(owned(given.get("owned")))
            .build();
        return Map.of(
            "state", member.state().name(),
            "epoch", member.memberEpoch(),
            "previous", member.previousMemberEpoch(),
            "assigned", texts(member.assignedPartitions()),
            "revoking", texts(member.partitionsPendingRevocation()));
    }

    /** Metadata in which all topics exist and are named as their ids. */
    private static CoordinatorMetadataImage image() {
        Class<?>[] types = {CoordinatorMetadataImage.class};
        return (CoordinatorMetadataImage) Proxy.newProxyInstance(
            GroupOracle.class.getClassLoader(), types, (proxy, method, arguments) -> {
                if (method.getName().equals("topicMetadata")) {
                    return Optional.of(new Topic(arguments[0].toString()));
                }
                throw new AssertionError("the image was asked for " + method);
            });
    }

    private record Topic(String name) implements CoordinatorMetadataImage.TopicMetadata {
        @Override
        public Uuid id() {
            return Uuid.fromString(name);
        }

        @Override
        public int partitionCount() {
            throw new AssertionError("the number of partitions was asked for");
        }

        @Override
        public List<String> partitionRacks(int number) {
            throw new AssertionError("racks were asked for");
        }
    }

    private static List<ConsumerGroupHeartbeatRequestData.TopicPartitions> owned(JsonNode given) {
        if (given.isNull()) {
            return null;
        }
        List<ConsumerGroupHeartbeatRequestData.TopicPartitions> owned = new ArrayList<>();
        partitions(given).forEach((topic, numbers) -> owned.add(
            new ConsumerGroupHeartbeatRequestData.TopicPartitions()
                .setTopicId(topic).setPartitions(new ArrayList<>(numbers))));
        return owned;
    }

    // ---- JSON

    private static Set<Uuid> topics(JsonNode given) {
        Set<Uuid> topics = new LinkedHashSet<>();
        given.forEach(topic -> topics.add(Uuid.fromString(topic.textValue())));
        return topics;
    }

    private static Map<Uuid, Set<Integer>> partitions(JsonNode given) {
        Map<Uuid, Set<Integer>> partitions = new LinkedHashMap<>();
        given.fields().forEachRemaining(each -> {
            Set<Integer> numbers = new LinkedHashSet<>();
            each.getValue().forEach(number -> numbers.add(number.intValue()));
            partitions.put(Uuid.fromString(each.getKey()), numbers);
        });
        return partitions;
    }

    private static Map<Uuid, Map<Integer, Integer>> epochs(JsonNode given) {
        Map<Uuid, Map<Integer, Integer>> epochs = new LinkedHashMap<>();
        given.fields().forEachRemaining(topic -> {
            Map<Integer, Integer> numbers = new LinkedHashMap<>();
            topic.getValue().fields().forEachRemaining(each ->
                numbers.put(Integer.valueOf(each.getKey()), each.getValue().intValue()));
            epochs.put(Uuid.fromString(topic.getKey()), numbers);
        });
        // CurrentAssignmentBuilder compares this one by identity, to see whether something was removed.
        return epochs.isEmpty() ? Map.of() : epochs;
    }

    private static <T> Map<String, T> texts(Map<Uuid, T> byTopic) {
        Map<String, T> texts = new LinkedHashMap<>();
        byTopic.forEach((topic, value) -> texts.put(topic.toString(), value));
        return texts;
    }
}
