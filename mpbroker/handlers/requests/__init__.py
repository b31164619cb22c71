"""One request from its descriptor to its response: admission, quotas, the scheduler, the purgatory."""
