"""One request from its slot to its answer: exchange, answers, throttling, the purgatory."""
