// Writes the golden cases with Apache Kafka's own client.
//
// Reads one job per line, as JSON: {"topic", "config": {name: value}, "records": [...],
// "aborted": [...]}, where a record is {"key", "value", "timestamp", "headers": [[name, value]]}
// and keys and values are base64 or null. A job whose config has a transactional.id becomes two
// transactions, the second of which is aborted.
//
// Run: java -cp 'jars/*' GoldenWriter.java jobs.jsonl

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.Producer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.header.Headers;
import org.apache.kafka.common.serialization.ByteArraySerializer;

public final class GoldenWriter {
    public static void main(String[] args) throws Exception {
        ObjectMapper json = new ObjectMapper();
        try (BufferedReader jobs = Files.newBufferedReader(Path.of(args[0]))) {
            for (String line = jobs.readLine(); line != null; line = jobs.readLine()) {
                run(json.readTree(line));
            }
        }
    }

    private static void run(JsonNode job) throws Exception {
        Properties config = new Properties();
        job.get("config").properties().forEach(
            setting -> config.put(setting.getKey(), setting.getValue().asText()));
        String topic = job.get("topic").asText();
        try (Producer<byte[], byte[]> producer =
                new KafkaProducer<>(config, new ByteArraySerializer(), new ByteArraySerializer())) {
            if (!config.containsKey("transactional.id")) {
                sendAll(producer, topic, job.get("records"));
                return;
            }
            producer.initTransactions();
            producer.beginTransaction();
            sendAll(producer, topic, job.get("records"));
            producer.commitTransaction();
            producer.beginTransaction();
            sendAll(producer, topic, job.get("aborted"));
            producer.abortTransaction();
        }
    }

    private static void sendAll(Producer<byte[], byte[]> producer, String topic, JsonNode records)
            throws IOException, InterruptedException, ExecutionException {
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        for (JsonNode record : records) {
            ProducerRecord<byte[], byte[]> message = new ProducerRecord<>(
                topic, 0, record.get("timestamp").asLong(),
                bytes(record.get("key")), bytes(record.get("value")));
            Headers headers = message.headers();
            for (JsonNode header : record.get("headers")) {
                headers.add(header.get(0).asText(), bytes(header.get(1)));
            }
            sent.add(producer.send(message));
        }
        producer.flush();
        for (Future<RecordMetadata> answer : sent) {
            answer.get();
        }
    }

    private static byte[] bytes(JsonNode base64) throws IOException {
        return base64.isNull() ? null : base64.binaryValue();
    }
}
