/*
 * What Apache Kafka's own admin client asks of a broker, beside topics and groups: one JSON object a
 * line, {"step": ..., "saw": ...}. Run from its source:
 *
 *   java -cp "jars/*" Administration.java BOOTSTRAP PREFIX
 *
 * Topic PREFIX + "topic", of two partitions, must be there, with some records in each.
 */

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.DescribeClusterOptions;
import org.apache.kafka.clients.admin.DescribeConfigsOptions;
import org.apache.kafka.clients.admin.DescribeTopicsOptions;
import org.apache.kafka.clients.admin.FeatureUpdate;
import org.apache.kafka.clients.admin.ListConfigResourcesOptions;
import org.apache.kafka.clients.admin.NewPartitionReassignment;
import org.apache.kafka.clients.admin.UpdateFeaturesOptions;
import org.apache.kafka.common.ElectionType;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;

public class Administration {
    static final String KEY = "compression.zstd.level";

    final Admin admin;
    final String topic;
    final String absent;
    final TopicPartition partition;
    final TopicPartition unknown;

    Administration(String bootstrap, String prefix) {
        var properties = new Properties();
        properties.put("bootstrap.servers", bootstrap);
        this.admin = Admin.create(properties);
        this.topic = prefix + "topic";
        this.absent = prefix + "absent";
        this.partition = new TopicPartition(topic, 0);
        this.unknown = new TopicPartition(absent, 0);
    }

    public static void main(String[] args) throws Exception {
        var run = new Administration(args[0], args[1]);
        run.logDirs();
        run.elections();
        run.reassignments();
        run.quorumAndFeatures();
        run.resources();
        run.brokerConfigs();
        run.operations();
        run.admin.close(Duration.ofSeconds(5));
    }

    void logDirs() throws Exception {
        var dirs = admin.describeLogDirs(List.of(1)).allDescriptions().get().get(1);
        tell("log dirs", dirs.size());
        for (var dir : dirs.values()) {
            var sizes = new TreeMap<String, Object>();
            for (var each : dir.replicaInfos().entrySet())
                if (each.getKey().topic().equals(topic))
                    sizes.put(each.getKey().toString(), List.of(each.getValue().size(),
                        each.getValue().offsetLag(), each.getValue().isFuture()));
            tell("log dir", List.of(sizes, dir.totalBytes().isPresent(),
                dir.usableBytes().getAsLong() <= dir.totalBytes().getAsLong(),
                String.valueOf(dir.error())));
        }
    }

    void elections() throws Exception {
        for (var type : ElectionType.values()) {
            var results = admin.electLeaders(type, Set.of(partition, unknown)).partitions().get();
            var saw = new TreeMap<String, Object>();
            results.forEach((each, error) -> saw.put(each.toString(), name(error)));
            tell("elect " + type, saw);
            var all = admin.electLeaders(type, null).partitions().get();
            tell("elect all " + type, all.keySet().stream().anyMatch(each -> each.topic().equals(topic)));
        }
    }

    void reassignments() throws Exception {
        for (var to : List.of(List.of(1), List.of(7), List.of(1, 7)))
            for (var each : List.of(partition, unknown))
                tell("reassign " + each.equals(partition) + " to " + to, outcome(() ->
                    admin.alterPartitionReassignments(Map.of(each,
                        Optional.of(new NewPartitionReassignment(to)))).all().get()));
        tell("cancel", outcome(() -> admin.alterPartitionReassignments(
            Map.of(partition, Optional.empty())).all().get()));
        tell("reassignments", admin.listPartitionReassignments().reassignments().get().size());
        tell("reassignments of it",
            admin.listPartitionReassignments(Set.of(partition)).reassignments().get().size());
    }

    void quorumAndFeatures() throws Exception {
        var quorum = admin.describeMetadataQuorum().quorumInfo().get();
        var voter = quorum.voters().get(0);
        tell("quorum", List.of(quorum.leaderId(), quorum.voters().size(), quorum.observers().size(),
            voter.replicaId(), quorum.highWatermark() <= voter.logEndOffset(),
            voter.lastCaughtUpTimestamp().isPresent(), quorum.nodes().get(1).endpoints().size()));
        var features = admin.describeFeatures().featureMetadata().get();
        tell("finalized", String.valueOf(features.finalizedFeatures().get("transaction.version")));
        var look = new UpdateFeaturesOptions().validateOnly(true);
        for (short level : new short[] {2, 3})
            tell("update to " + level, outcome(() -> admin.updateFeatures(Map.of("transaction.version",
                new FeatureUpdate(level, FeatureUpdate.UpgradeType.UPGRADE)), look).all().get()));
        tell("update an unknown one", outcome(() -> admin.updateFeatures(Map.of("no.such.feature",
            new FeatureUpdate((short) 1, FeatureUpdate.UpgradeType.UPGRADE)), look).all().get()));
    }

    void resources() throws Exception {
        var types = Set.of(ConfigResource.Type.TOPIC, ConfigResource.Type.BROKER,
            ConfigResource.Type.GROUP, ConfigResource.Type.CLIENT_METRICS);
        List<String> saw = new ArrayList<>();
        for (var each : admin.listConfigResources(types, new ListConfigResourcesOptions()).all().get())
            if (each.type() == ConfigResource.Type.BROKER || each.name().equals(topic))
                saw.add(each.type() + " " + each.name());
        tell("resources", saw.stream().sorted().toList());
        tell("client metrics", admin.listConfigResources(
            Set.of(ConfigResource.Type.CLIENT_METRICS),
            new ListConfigResourcesOptions()).all().get().size());
    }

    void brokerConfigs() throws Exception {
        var here = new ConfigResource(ConfigResource.Type.BROKER, "1");
        var everywhere = new ConfigResource(ConfigResource.Type.BROKER, "");
        for (var each : List.of("log.retention.hours", "log.retention.ms", KEY, "default.replication.factor"))
            tell("config " + each, entry(here, each));
        for (var resource : List.of(here, everywhere)) {
            alter(resource, new AlterConfigOp(new ConfigEntry(KEY, "5"), AlterConfigOp.OpType.SET));
            tell("altered for " + resource.name(), eventually(here, KEY, "5"));
            alter(resource, new AlterConfigOp(new ConfigEntry(KEY, ""), AlterConfigOp.OpType.DELETE));
            tell("taken back for " + resource.name(), eventually(here, KEY, "3"));
        }
        for (var each : List.of("num.partitions", "node.id", "log.retention.hours"))
            tell("alter " + each, outcome(() -> alter(here,
                new AlterConfigOp(new ConfigEntry(each, "5"), AlterConfigOp.OpType.SET))));
        tell("alter to nonsense", outcome(() -> alter(here,
            new AlterConfigOp(new ConfigEntry(KEY, "many"), AlterConfigOp.OpType.SET))));
    }

    void operations() throws Exception {
        var options = new DescribeClusterOptions().includeAuthorizedOperations(true);
        var cluster = admin.describeCluster(options);
        tell("cluster operations",
            cluster.authorizedOperations().get().stream().map(String::valueOf).sorted().toList());
        var described = admin.describeTopics(List.of(topic), new DescribeTopicsOptions().includeAuthorizedOperations(true)).allTopicNames().get();
        tell("topic operations", described.get(topic).authorizedOperations().stream()
            .map(String::valueOf).sorted().toList());
    }

    Object alter(ConfigResource resource, AlterConfigOp change) throws Exception {
        return admin.incrementalAlterConfigs(Map.of(resource, List.of(change))).all().get();
    }

    List<Object> entry(ConfigResource resource, String key) throws Exception {
        var options = new DescribeConfigsOptions().includeSynonyms(true).includeDocumentation(true);
        var found = admin.describeConfigs(List.of(resource), options).all().get().get(resource).get(key);
        return List.of(String.valueOf(found.value()), found.source().toString(),
            found.type().toString(), found.isReadOnly(), !found.documentation().isEmpty(),
            found.synonyms().stream().map(each -> each.name() + " " + each.source()).toList());
    }

    /** A broker that is told by a controller hears of a change a little later. */
    List<Object> eventually(ConfigResource resource, String key, String value) throws Exception {
        var until = System.currentTimeMillis() + 10_000;
        var found = entry(resource, key);
        while (!found.get(0).equals(value) && System.currentTimeMillis() < until) {
            Thread.sleep(20);
            found = entry(resource, key);
        }
        return found;
    }

    static String outcome(Callable<Object> act) {
        try {
            act.call();
            return "done";
        } catch (ExecutionException error) {
            return name(Optional.of(error.getCause()));
        } catch (Exception error) {
            return name(Optional.of(error));
        }
    }

    static String name(Optional<Throwable> error) {
        return error.map(each -> each.getClass().getSimpleName()).orElse("none");
    }

    static void tell(String step, Object saw) {
        System.out.println(json(new TreeMap<>(Map.of("step", step, "saw", saw))));
    }

    static String json(Object value) {
        if (value instanceof List<?> list)
            return list.stream().map(Administration::json).toList().toString();
        if (value instanceof Map<?, ?> map) {
            List<String> rows = new ArrayList<>();
            map.forEach((key, inner) -> rows.add(json(key) + ": " + json(inner)));
            return "{" + String.join(", ", rows) + "}";
        }
        if (value instanceof Number || value instanceof Boolean)
            return value.toString();
        return "\"" + String.valueOf(value).replace("\\", "\\\\").replace("\"", "\\\"") + "\"";
    }
}
