"""Fused twins of the path from scores to loss: the same values and gradients in fewer passes."""
