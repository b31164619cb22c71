"""Kafka's protocol without I/O: messages, their codec, headers, API keys and error codes.

`codec` turns messages to bytes and back, `headers` does so with whole frames, `messages` has the classes,
`api_keys` their versions, `errors` what a response may say. The schema and both compilers are loaded lazily.
"""
