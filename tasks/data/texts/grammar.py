"""A context-free grammar of short opinions in six classes, with noise. Legend: a rule is one way to write a symbol.

The class is a property of the sentence. Each clause is good or bad by its adjective and its negation. Of two clauses the main
one counts more, and connectives mark it: "although A, B" and "B although A" both mean B. Therefore neither a single word nor
the set of words determines the class.
"""

import numpy as np

RULES: dict[str, tuple[str, ...]] = {
    "PRAISE": ("OPENING GOOD AND GOOD END", "OPENING GOOD , BECAUSE GOOD END"),
    "COMPLAINT": ("OPENING BAD AND BAD END", "OPENING BAD , BECAUSE BAD END"),
    "RELIEF": ("OPENING BAD BUT GOOD END", "ALTHOUGH BAD , GOOD END", "OPENING GOOD ALTHOUGH BAD END"),
    "REGRET": ("OPENING GOOD BUT BAD END", "ALTHOUGH GOOD , BAD END", "OPENING BAD ALTHOUGH GOOD END"),
    "WISH": ("OPENING IF_ONLY WISHED END", "IF_ONLY WISHED , because BAD END", "OPENING BAD AND IF_ONLY WISHED END"),
    "DOUBT": ("OPENING WHO_KNOWS GOOD END", "OPENING WHO_KNOWS BAD END", "WHO_KNOWS GOOD or BAD END"),
    "GOOD": ("THING IS DEGREE PLEASANT", "THING IS DEGREE PLEASANT", "THING IS NOT UNPLEASANT"),
    "BAD": ("THING IS DEGREE UNPLEASANT", "THING IS DEGREE UNPLEASANT", "THING IS NOT PLEASANT"),
    "WISHED": ("THING were DEGREE PLEASANT", "THING were NOT UNPLEASANT"),
    "OPENING": (
        "",
        "",
        "honestly ,",
        "DAY ,",
        "when we came DAY ,",
        "no wonder ,",
        "as i know now ,",
        "if you ask me ,",
    ),
    "END": (".", ".", "!", "DAY .", ", i think .", "for us .", ", as you know ."),
    "DAY": ("last week", "on monday", "on friday", "this morning", "in the evening", "twice"),
    "AND": ("and", ", and also", "and besides"),
    "BECAUSE": ("because", "since", "as"),
    "BUT": ("but", ", but", ", yet", "and still"),
    "ALTHOUGH": ("although", "though", "even though", "while"),
    "IF_ONLY": ("if only", "i wish", "we hoped that", "it would help if"),
    "WHO_KNOWS": ("i wonder if", "nobody knows whether", "it is not clear whether", "i cannot say if"),
    "THING": ("the NOUN", "the NOUN", "their NOUN", "the NOUN of the PLACE", "the NOUN in the PLACE"),
    "NOUN": ("soup", "bread", "coffee", "bed", "shower", "view", "light", "music", "waiter", "price", "parking", "key"),
    "PLACE": ("restaurant", "hotel", "bar", "lobby", "first room", "other room", "garden", "station"),
    "IS": ("is", "was", "seems", "seemed"),
    "DEGREE": ("", "very", "really", "quite", "rather", "so"),
    "NOT": ("not", "never", "hardly", "not at all", "by no means"),
    "PLEASANT": ("good", "great", "warm", "clean", "quiet", "friendly", "fresh", "cheap", "bright", "nice"),
    "UNPLEASANT": ("bad", "awful", "cold", "dirty", "loud", "rude", "stale", "expensive", "dark", "poor"),
}
"""Symbol -> its rules; everything else is a word. Classes are symbols, too."""
CLASSES = ("praise", "complaint", "relief", "regret", "wish", "doubt")
TAGS = ("other", "thing", "place", "time", "good", "bad", "wished")
"""Classes of words. An adjective is good, bad or wished like its clause: "pleasant" in "not pleasant" is bad."""
_TAG_OF = {"NOUN": "thing", "PLACE": "place", "DAY": "time"}
_CLAUSES = {"GOOD": "good", "BAD": "bad", "WISHED": "wished"}
LOST, MISSPELT = 0.01, 0.02
"""Share of the words that are left out, and share that lack a letter."""


def sentence(name: str, rng: np.random.Generator) -> str:
    """A sentence of a class with its noise, drawn by `rng`."""
    return " ".join(tagged_sentence(name, rng)[0])


def tagged_sentence(name: str, rng: np.random.Generator) -> tuple[list[str], list[str]]:
    """The words of a sentence of a class with its noise, and the tag of each."""
    noisy = [(_noisy(word, rng), tag) for word, tag in _derived(name.upper(), rng)]
    return [word for word, _ in noisy if word], [tag for word, tag in noisy if word]


def _derived(symbol: str, rng: np.random.Generator, clause: str = "", tag: str = TAGS[0]) -> list[tuple[str, str]]:
    """Words with their tags. clause: the tag of adjectives here. tag: of the parent symbol."""
    if symbol not in RULES:
        return [(symbol, tag)]
    clause = _CLAUSES.get(symbol, clause)
    tag = clause if symbol in ("PLEASANT", "UNPLEASANT") else _TAG_OF.get(symbol, tag)
    rules = RULES[symbol]
    return [word for part in rules[rng.integers(len(rules))].split() for word in _derived(part, rng, clause, tag)]


def _noisy(word: str, rng: np.random.Generator) -> str:
    drawn = rng.random()
    if drawn < LOST:
        return ""
    if drawn < LOST + MISSPELT and len(word) > 2:
        place = rng.integers(len(word))
        return word[:place] + word[place + 1 :]
    return word
