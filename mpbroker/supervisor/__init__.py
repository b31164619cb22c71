"""The process tree: starts, watches, resizes and stops it; owns the listening and control sockets."""
