"""The process tree: starts, watches, mends, resizes and stops it; owns the listening and control sockets."""
