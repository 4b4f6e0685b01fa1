"""The Kafka protocol as bytes: frames, headers, messages. No sockets, no state."""
