"""The process tree: starts it, watches it, mends it, resizes it, stops it; owns the listening sockets and the
control socket.
"""
