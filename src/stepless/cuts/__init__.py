"""Counts at every cut there is, and the best of them: for one threshold, one a label, one offset a class."""
