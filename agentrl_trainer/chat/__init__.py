"""Tokens of a conversation: chat-template rendering and the append-only token buffer."""
