"""Files of a log directory in Kafka's formats; other rooms read them too."""
