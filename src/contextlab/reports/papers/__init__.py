"""The tables and figures of the papers as data, with recipes that measure their counterparts.

One TOML file for each paper: what it prints, what is wrong in it, and which runs stand beside it.
"""
