/*
 * Transactions as Apache Kafka's own client makes them, and what its tools say of them: one JSON
 * object a line, {"step": ..., "saw": ...}. Run from its source:
 *
 *   java -cp "jars/*" Transactions.java BOOTSTRAP PREFIX
 *
 * Topics PREFIX + "in", "out" and "late", of two partitions each, must be there, and be empty.
 */

import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
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
import org.apache.kafka.clients.admin.ListTransactionsOptions;
import org.apache.kafka.clients.admin.TransactionDescription;
import org.apache.kafka.clients.admin.TransactionListing;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.common.utils.Exit;
import org.apache.kafka.tools.TransactionsCommand;

public class Transactions {
    static final Set<String> ENDED = Set.of("Empty", "CompleteCommit", "CompleteAbort");
    static final Duration MOMENT = Duration.ofMillis(50);
    static final PrintStream TOLD = System.out;

    final String bootstrap;
    final String prefix;
    final String in;
    final String out;
    final Admin admin;

    Transactions(String bootstrap, String prefix) {
        this.bootstrap = bootstrap;
        this.prefix = prefix;
        this.in = prefix + "in";
        this.out = prefix + "out";
        this.admin = Admin.create(properties());
    }

    public static void main(String[] args) throws Exception {
        var run = new Transactions(args[0], args[1]);
        var late = run.producer("late", 3000);
        late.beginTransaction();
        tell("late", run.send(late, run.prefix + "late", "late"));
        run.transactions();
        run.offsets();
        run.fencing();
        run.loop();
        run.tools();
        run.timeout(late);
        run.admin.close(Duration.ofSeconds(5));
    }

    Properties properties() {
        var properties = new Properties();
        properties.put("bootstrap.servers", bootstrap);
        return properties;
    }

    KafkaProducer<String, String> producer(String id, int timeoutMs) {
        var properties = properties();
        properties.put("transactional.id", prefix + id);
        properties.put("transaction.timeout.ms", timeoutMs);
        properties.put("linger.ms", 0);
        var producer = new KafkaProducer<>(properties, new StringSerializer(), new StringSerializer());
        producer.initTransactions();
        return producer;
    }

    KafkaConsumer<String, String> consumer(String group, String isolation) {
        var properties = properties();
        properties.put("group.id", prefix + group);
        properties.put("isolation.level", isolation);
        properties.put("auto.offset.reset", "earliest");
        properties.put("enable.auto.commit", false);
        properties.put("fetch.max.wait.ms", 50);
        return new KafkaConsumer<>(properties, new StringDeserializer(), new StringDeserializer());
    }

    /** The offsets of the values, each sent to both partitions of the topic. */
    List<Object> send(KafkaProducer<String, String> producer, String topic, String... values) {
        List<Object> offsets = new ArrayList<>();
        for (var value : values)
            for (int partition = 0; partition < 2; partition++) {
                var record = new ProducerRecord<>(topic, partition, "k", value);
                offsets.add(heard(() -> producer.send(record).get().offset()));
            }
        return offsets;
    }

    /** What a call gives, or the name of what it throws. */
    static Object heard(Callable<Object> call) {
        try {
            return call.call();
        } catch (ExecutionException error) {
            return error.getCause().getClass().getSimpleName();
        } catch (Exception error) {
            return error.getClass().getSimpleName();
        }
    }

    static Object heard(Runnable call) {
        return heard(() -> {
            call.run();
            return "done";
        });
    }

    void transactions() throws Exception {
        try (var producer = producer("plain", 60_000)) {
            producer.beginTransaction();
            tell("first", send(producer, out, "a", "b"));
            producer.commitTransaction();
            producer.beginTransaction();
            tell("second", send(producer, out, "c"));
            look("open");
            producer.abortTransaction();
            producer.beginTransaction();
            producer.commitTransaction();
            producer.beginTransaction();
            producer.abortTransaction();
            producer.beginTransaction();
            tell("third", send(producer, out, "d"));
            producer.commitTransaction();
            look("ended");
        }
    }

    /** Records and position of readers of both kinds; the end of the partition for both. */
    void look(String label) {
        for (var isolation : List.of("read_committed", "read_uncommitted"))
            try (var consumer = consumer("unused", isolation)) {
                var partition = new TopicPartition(out, 1);
                consumer.assign(List.of(partition));
                consumer.seekToBeginning(List.of(partition));
                long end = consumer.endOffsets(List.of(partition)).get(partition);
                List<Object> values = new ArrayList<>();
                while (consumer.position(partition) < end)
                    for (ConsumerRecord<String, String> each : consumer.poll(MOMENT))
                        values.add(each.offset() + "=" + each.value());
                tell(label + " " + isolation, List.of(values, consumer.position(partition), end));
            }
    }

    void offsets() throws Exception {
        var group = member(-1, "");
        try (var producer = producer("offsets", 60_000)) {
            for (var commit : List.of(true, false)) {
                producer.beginTransaction();
                var offset = new OffsetAndMetadata(commit ? 5 : 6);
                producer.sendOffsetsToTransaction(Map.of(new TopicPartition(in, 0), offset), group);
                if (commit)
                    producer.commitTransaction();
                else
                    producer.abortTransaction();
                settle("offsets");
                var found = admin.listConsumerGroupOffsets(prefix + "group");
                var committed = found.partitionsToOffsetAndMetadata().get();
                tell("offset, commit=" + commit, committed.get(new TopicPartition(in, 0)).offset());
            }
            producer.beginTransaction();
            var stranger = member(3, "stranger");
            var offsets = Map.of(new TopicPartition(in, 0), new OffsetAndMetadata(9));
            tell("a stranger", heard(() -> producer.sendOffsetsToTransaction(offsets, stranger)));
            tell("a stranger commits", heard(producer::commitTransaction));
            tell("a stranger aborts", heard(producer::abortTransaction));
            producer.beginTransaction();
            tell("after the abort", send(producer, out, "after a stranger"));
            producer.commitTransaction();
        }
    }

    @SuppressWarnings("removal")
    ConsumerGroupMetadata member(int generation, String member) {
        return new ConsumerGroupMetadata(prefix + "group", generation, member, Optional.empty());
    }

    void fencing() throws Exception {
        for (var act : List.of("send", "commit", "abort")) {
            var old = producer("fenced " + act, 60_000);
            old.beginTransaction();
            tell("old", send(old, out, "old"));
            var young = producer("fenced " + act, 60_000);
            if (act.equals("send"))
                tell("old sends", send(old, out, "zombie"));
            Runnable end = act.equals("abort") ? old::abortTransaction : old::commitTransaction;
            tell("old " + act, heard(end));
            young.beginTransaction();
            tell("new", send(young, out, "new"));
            young.commitTransaction();
            old.close(Duration.ZERO);
            young.close();
        }
        var forced = producer("forced", 60_000);
        forced.beginTransaction();
        tell("to be fenced", send(forced, out, "x"));
        tell("fenceProducers", heard(() -> {
            admin.fenceProducers(List.of(prefix + "forced")).all().get();
            return "done";
        }));
        tell("fenced by it", heard(forced::commitTransaction));
        forced.close(Duration.ZERO);
    }

    /** Reads as a member of a group, and writes with its offsets. */
    void loop() throws Exception {
        try (var feed = producer("feed", 60_000)) {
            feed.beginTransaction();
            for (int number = 0; number < 6; number++)
                feed.send(new ProducerRecord<>(in, number % 2, "k", "" + number));
            feed.commitTransaction();
        }
        int copied = 0;
        try (var producer = producer("loop", 60_000);
             var consumer = consumer("loop", "read_committed")) {
            consumer.subscribe(List.of(in));
            while (copied < 6) {
                var records = consumer.poll(MOMENT);
                if (records.isEmpty())
                    continue;
                producer.beginTransaction();
                for (ConsumerRecord<String, String> each : records)
                    producer.send(new ProducerRecord<>(out, each.partition(), "k", each.value()));
                producer.sendOffsetsToTransaction(records.nextOffsets(), consumer.groupMetadata());
                producer.commitTransaction();
                copied += records.count();
            }
            settle("loop");
            Map<String, Object> committed = new TreeMap<>();
            var partitions = Set.of(new TopicPartition(in, 0), new TopicPartition(in, 1));
            consumer.committed(partitions).forEach((each, row) -> committed.put("" + each.partition(), row.offset()));
            tell("copied", List.of(copied, committed));
        }
    }

    /** TransactionsCommand, as if typed. */
    void tools() throws Exception {
        var producer = producer("tool", 60_000);
        producer.beginTransaction();
        tell("open for the tools", send(producer, out, "tool"));
        tool("list");
        tool("describe", "--transactional-id", prefix + "tool");
        tool("describe", "--transactional-id", prefix + "plain");
        tool("describe-producers", "--topic", out, "--partition", "0");
        tool("find-hanging", "--topic", out);
        tool("find-hanging", "--broker-id", admin.describeCluster().nodes().get().iterator().next().idString());
        tell("filter", listed(new ListTransactionsOptions().filterOnDuration(1)));
        tell("pattern", listed(new ListTransactionsOptions().filterOnTransactionalIdPattern(".*tool")));
        abortByMarker();
        tool("forceTerminateTransaction", "--transactionalId", prefix + "tool");
        settle("tool");
        tell("terminated", heard(producer::commitTransaction));
        tell("not known", heard(() -> describe("nobody")));
        producer.close(Duration.ZERO);
        look("the end");
    }

    /** What an operator does to a transaction that hangs in a partition. */
    void abortByMarker() throws Exception {
        var producer = producer("hanging", 60_000);
        producer.beginTransaction();
        var offsets = send(producer, out, "hanging");
        for (int partition = 0; partition < 2; partition++)
            tool("abort", "--topic", out, "--partition", "" + partition,
                    "--start-offset", offsets.get(partition).toString());
        tool("describe-producers", "--topic", out, "--partition", "0");
        tell("goes on behind the marker", send(producer, out, "behind"));
        tell("commits behind the marker", heard(producer::commitTransaction));
        producer.close(Duration.ZERO);
    }

    void tool(String... words) throws Exception {
        List<String> line = new ArrayList<>(List.of("--bootstrap-server", bootstrap));
        line.addAll(List.of(words));
        var printed = new ByteArrayOutputStream();
        System.setOut(new PrintStream(printed, true, StandardCharsets.UTF_8));
        // It means to end the process when it is done.
        Exit.setExitProcedure((status, message) -> {
            if (status != 0)
                throw new IllegalStateException(line + " ended with status " + status);
        });
        TransactionsCommand.main(line.toArray(String[]::new));
        System.setOut(TOLD);
        tell("tool " + words[0], List.of(printed.toString(StandardCharsets.UTF_8).split("\n")));
    }

    Map<String, Object> listed(ListTransactionsOptions options) throws Exception {
        Map<String, Object> found = new TreeMap<>();
        for (TransactionListing each : admin.listTransactions(options).all().get())
            if (each.transactionalId().equals(prefix + "tool"))
                found.put(each.transactionalId(), each.state().toString());
        return found;
    }

    void timeout(KafkaProducer<String, String> late) throws Exception {
        settle("late");
        tell("too late", describe("late"));
        tell("too late to send", send(late, prefix + "late", "late"));
        tell("too late to commit", heard(late::commitTransaction));
        tell("not too late to abort", heard(late::abortTransaction));
        tell("begins anew", heard(late::beginTransaction));
        tell("sends anew", send(late, prefix + "late", "anew"));
        tell("commits anew", heard(late::commitTransaction));
        late.close();
    }

    String describe(String id) throws Exception {
        TransactionDescription found = admin.describeTransactions(List.of(prefix + id)).description(prefix + id).get();
        return found.state() + " " + found.topicPartitions().size();
    }

    void settle(String id) throws Exception {
        while (!ENDED.contains(describe(id).split(" ")[0]))
            Thread.sleep(20);
    }

    static void tell(String step, Object saw) {
        TOLD.println("{\"step\": " + json(step) + ", \"saw\": " + json(saw) + "}");
    }

    static String json(Object value) {
        if (value instanceof List<?> list)
            return list.stream().map(Transactions::json).toList().toString();
        if (value instanceof Map<?, ?> map) {
            List<String> rows = new ArrayList<>();
            map.forEach((key, inner) -> rows.add(json(key) + ": " + json(inner)));
            return "{" + String.join(", ", rows) + "}";
        }
        if (value instanceof Number)
            return value.toString();
        var text = String.valueOf(value).replace("\\", "\\\\").replace("\"", "\\\"");
        return "\"" + text.replace("\t", "\\t").replace("\r", "") + "\"";
    }
}
