"""Which segments and records are deleted, and how."""
