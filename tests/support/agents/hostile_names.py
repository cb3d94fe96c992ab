"""Names that a foreign model file may bring to run code or to break files of text."""

from pathlib import Path

from hypothesis import strategies as st

PLAIN = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)
MOST = 256  # characters of an input or output that a job may name

KNOWN = (
    "class",
    "forward",
    "training",
    "self",
    "a b",
    "a\tb",
    "x\nConvolution evil 1 1 in0 out0 0=1 1=1 6=1",
    "ﬁ",
    "a.b.c",
    "../../etc/passwd",
    "%s%n%n",
    "a\0b",
    "'\"\\",
    "{}",
    "node0_",
    "value1_",
    "layer0_",
    "in0",
    "out0",
    "n" * MOST,
)


def running(marker: Path) -> list[str]:
    """Names that make the file `marker` when they are read as source text."""
    touch = f'getattr(__import__("os"),"system")("touch {marker}")'
    return [
        f'a") if {touch} else getattr(self, "a',
        f"a') if {touch} else getattr(self, 'a",
        f"{touch}",
        f"a = {touch} #",
        f"a\n{touch}\n",
        f"a); {touch}; (a",
        f"$(touch {marker})",
        f"; touch {marker};",
    ]


def names(marker: Path) -> st.SearchStrategy[str]:
    """Names of all these kinds."""
    return st.sampled_from(running(marker)) | st.sampled_from(KNOWN) | PLAIN
