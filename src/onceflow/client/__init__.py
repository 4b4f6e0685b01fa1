"""What talks to a broker, ours or Apache Kafka."""
