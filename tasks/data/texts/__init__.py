"""Texts with one class each, or one class per word, as numbers of words: sentences of a grammar, and JSON lines."""

from tasks.data.texts.jsonl import open_jsonl
from tasks.data.texts.sentences import open_sentences
from tasks.data.texts.tagged import open_tagged_jsonl, open_tagged_sentences
from tasks.data.texts.tokens import TextSource

__all__ = ["TextSource", "open_jsonl", "open_sentences", "open_tagged_jsonl", "open_tagged_sentences"]
