"""Small networks trained together: what they are, what they are trained on, and their batches."""
