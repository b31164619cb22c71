"""Kafka's protocol without I/O: messages, their codec, headers, API keys and error codes.

`codec` encodes and decodes messages, `headers` whole frames. `messages` has the classes of messages,
`api_keys` the API keys with their versions, `errors` the error codes. Schema and compilers are loaded lazily.
"""
