"""Texts with one class each, as numbers of words: sentences of a grammar, and files with a text in each line."""

from tasks.data.texts.jsonl import open_jsonl
from tasks.data.texts.sentences import open_sentences
from tasks.data.texts.tokens import TextSource

__all__ = ["TextSource", "open_jsonl", "open_sentences"]
