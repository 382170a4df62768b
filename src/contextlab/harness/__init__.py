"""Runs methods on tasks and keeps the results on disk."""
