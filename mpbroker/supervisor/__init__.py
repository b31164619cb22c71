"""The process tree: starts, watches, resizes and stops it, and handles deaths; owns the listening and control sockets."""
