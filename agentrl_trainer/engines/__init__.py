"""Inference engines behind one protocol, and the pool of fresh and stale ones."""
