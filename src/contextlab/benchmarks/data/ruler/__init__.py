"""RULER's 13 tasks (Hsieh et al. 2024): generated texts of a given length, with a question about each."""
