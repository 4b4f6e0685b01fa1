"""`onceflow log`: what is in the files of a broker, ours or Apache Kafka's."""
