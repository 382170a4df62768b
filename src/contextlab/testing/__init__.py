"""The laws that every context method obeys, for the tests of those who write one."""
