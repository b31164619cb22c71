"""What a start takes of its host, and what refuses it: the supervisor does it, `mpbroker doctor` tries it."""
