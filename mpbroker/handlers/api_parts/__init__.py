"""Parts that several APIs share: rules of settings and of commits, calls to the coordinator and the log."""
