"""Gymnasium: spaces, the env and the vector env."""
