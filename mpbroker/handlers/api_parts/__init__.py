"""Code that several APIs share: checks of settings and commits, calls to the coordinator and the log."""
