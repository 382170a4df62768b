"""Training: document streams, objectives, one loop for every method that learns, checkpoints and cards."""
