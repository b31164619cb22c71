"""Commands about a broker and its files on this host."""
