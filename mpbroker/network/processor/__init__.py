"""The processor process: frames requests, dispatches them, sends answers (Kafka: Processor, Selector, KafkaChannel)."""
