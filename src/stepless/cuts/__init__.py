"""The exact counts at every cut, and the best cut: one threshold, one per label, or one offset per class."""
