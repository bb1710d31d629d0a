"""Text to token ids and back, torch-free: Hugging Face folders and GGUF files."""

from engine.tokenizer.tokenizer import Tokenizer

__all__ = ["Tokenizer"]
