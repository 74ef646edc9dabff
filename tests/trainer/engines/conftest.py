"""The tiny chat model."""

from tinychat import chat_folder, make_model, model_folder

__all__ = ["chat_folder", "make_model", "model_folder"]
