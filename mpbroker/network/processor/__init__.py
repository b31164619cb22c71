"""The processor process: frames, dispatch, answers (Kafka: Processor, Selector, KafkaChannel)."""
