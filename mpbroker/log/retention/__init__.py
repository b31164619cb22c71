"""Retention rules, and the deletion of segments and records."""
