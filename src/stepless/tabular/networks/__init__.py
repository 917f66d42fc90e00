"""Small networks that are trained together: their layers, losses, batches and checkpoints."""
