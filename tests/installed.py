"""Which built-in methods can be built here: some need a package that is not installed with this one."""

from __future__ import annotations

from importlib.util import find_spec

from contextlab import registry

PACKAGES = {"press": "kvpress"}
"""Packages that are not among the requirements of the tests, because theirs exclude current ones of others."""
MISSING = [name for name, package in PACKAGES.items() if find_spec(package) is None]
METHODS = [name for name in registry.methods() if name not in MISSING]
"""All registered methods but those."""
