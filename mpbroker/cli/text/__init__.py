"""Reads and writes the text of commands: tables, JSON, times, progress, questions."""
