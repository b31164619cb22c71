"""Commands that write and read records, and the formats of records."""
