"""Integrations with other libraries, which are imported only when needed."""
