"""Protocols: what is read, and what is asked of the state."""
