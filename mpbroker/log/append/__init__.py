"""The native turn of a log worker, its commit rounds, and the commit journal that makes them durable."""
