"""Adapters to other libraries: thin, imported lazily, an extra each."""
