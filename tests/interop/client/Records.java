/*
 * Records by Apache Kafka's own client, as another program says on standard input: one command a
 * line, words separated by tabs. Run from its source:
 *
 *   java -cp "jars/*" Records.java BOOTSTRAP
 *
 *   producer CODEC ID                                       the one that sends from now on
 *   begin | commit | abort                                  its transaction
 *   send TOPIC PARTITION TIMESTAMP KEY VALUE [NAME VALUE]...  a record with its headers
 *   read TOPIC COUNT                                        so many committed records of a topic
 *
 * Bytes are "x" and hexadecimal digits; "-" stands for what is null or left to the client. Answers
 * are lines of the same form: "sent PARTITION OFFSET" for each record, when its producer is
 * replaced or the input ends; "record PARTITION OFFSET TIMESTAMP KEY VALUE [NAME VALUE]...".
 */

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

public class Records {
    static final String ABSENT = "-";
    static final Duration MOMENT = Duration.ofMillis(100);

    final String bootstrap;
    final StringBuilder told = new StringBuilder();
    final List<Future<RecordMetadata>> sent = new ArrayList<>();
    KafkaProducer<byte[], byte[]> producer;

    Records(String bootstrap) {
        this.bootstrap = bootstrap;
    }

    public static void main(String[] args) throws Exception {
        var run = new Records(args[0]);
        var lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        for (var line = lines.readLine(); line != null; line = lines.readLine()) try {
            run.obey(line.split("\t"));
        } catch (Exception error) {
            // Kafka's errors have no stack, which the launcher of single files cannot print.
            System.err.println(line + ": " + error + ", caused by " + error.getCause());
            System.exit(1);
        }
        run.finish();
        System.out.print(run.told);
    }

    void obey(String[] words) throws Exception {
        switch (words[0]) {
            case "producer" -> open(words[1], words[2]);
            case "begin" -> producer.beginTransaction();
            case "commit" -> producer.commitTransaction();
            case "abort" -> abort();
            case "send" -> send(words);
            case "read" -> read(words[1], Integer.parseInt(words[2]));
            default -> throw new IllegalArgumentException(words[0]);
        }
    }

    void open(String codec, String id) throws Exception {
        finish();
        var properties = new Properties();
        properties.put("bootstrap.servers", bootstrap);
        properties.put("compression.type", codec);
        properties.put("linger.ms", 5);
        if (!id.equals(ABSENT))
            properties.put("transactional.id", id);
        producer = new KafkaProducer<>(properties, new ByteArraySerializer(), new ByteArraySerializer());
        if (!id.equals(ABSENT))
            producer.initTransactions();
    }

    /** What is aborted shall be in the log. */
    void abort() {
        producer.flush();
        producer.abortTransaction();
    }

    void send(String[] words) {
        List<Header> headers = new ArrayList<>();
        for (int at = 6; at < words.length; at += 2) {
            var name = new String(bytes(words[at]), StandardCharsets.UTF_8);
            headers.add(new RecordHeader(name, bytes(words[at + 1])));
        }
        Integer partition = words[2].equals(ABSENT) ? null : Integer.valueOf(words[2]);
        Long timestamp = Long.valueOf(words[3]);
        var key = bytes(words[4]);
        sent.add(producer.send(new ProducerRecord<>(words[1], partition, timestamp, key, bytes(words[5]), headers)));
    }

    void finish() throws Exception {
        if (producer == null)
            return;
        producer.flush();
        for (var each : sent)
            tell("sent", each.get().partition(), each.get().offset());
        sent.clear();
        producer.close();
        producer = null;
    }

    void read(String topic, int count) {
        var properties = new Properties();
        properties.put("bootstrap.servers", bootstrap);
        properties.put("isolation.level", "read_committed");
        properties.put("enable.auto.commit", false);
        try (var consumer = new KafkaConsumer<>(properties, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            List<TopicPartition> all = new ArrayList<>();
            consumer.partitionsFor(topic).forEach(each -> all.add(new TopicPartition(topic, each.partition())));
            consumer.assign(all);
            consumer.seekToBeginning(all);
            for (int seen = 0; seen < count;)
                for (ConsumerRecord<byte[], byte[]> each : consumer.poll(MOMENT)) {
                    show(each);
                    seen++;
                }
        }
    }

    void show(ConsumerRecord<byte[], byte[]> record) {
        List<Object> words = new ArrayList<>(List.of("record", record.partition(), record.offset(), record.timestamp()));
        words.add(text(record.key()));
        words.add(text(record.value()));
        for (var header : record.headers()) {
            words.add(text(header.key().getBytes(StandardCharsets.UTF_8)));
            words.add(text(header.value()));
        }
        tell(words.toArray());
    }

    void tell(Object... words) {
        for (int at = 0; at < words.length; at++)
            told.append(at == 0 ? "" : "\t").append(words[at]);
        told.append("\n");
    }

    static byte[] bytes(String word) {
        return word.equals(ABSENT) ? null : HexFormat.of().parseHex(word.substring(1));
    }

    static String text(byte[] bytes) {
        return bytes == null ? ABSENT : "x" + HexFormat.of().formatHex(bytes);
    }
}
