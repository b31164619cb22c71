"""Opening existing partitions at a start, and the clean stop that makes the next start short."""
