"""What lies in a log directory, file by file, in Kafka's formats. Others read these too."""
