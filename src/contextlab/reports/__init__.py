"""Tables made from stored results."""
