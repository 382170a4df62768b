"""Protocols: which context a method reads, and which questions it answers from the state."""
