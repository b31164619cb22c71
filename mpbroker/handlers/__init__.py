"""The handler process: a native turn for the common requests, and Kafka's APIs in Python.

(Kafka: KafkaRequestHandler, KafkaApis.)
"""
