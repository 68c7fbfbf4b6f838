"""Variables on ranks: push, pull, scatter, gather, compare and list."""
