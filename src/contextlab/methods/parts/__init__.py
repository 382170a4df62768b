"""What methods are made of: local caches, banks, branches of a state, low-rank updates, the division into blocks."""
