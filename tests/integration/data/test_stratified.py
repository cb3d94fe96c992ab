"""Splits and digits are those of scikit-learn, which no rank of a training has to import for them."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from tasks.data import DataSettings
from tasks.data.drawn.digits import Digits
from tasks.data.source import TooFewError, stratified
from tests.support import examples


@settings(max_examples=examples(200), deadline=None)
@given(labels=st.lists(st.integers(0, 6), max_size=60), share=st.floats(0, 1), seed=st.integers(0, 2**32 - 1))
def test_splits_are_those_of_scikit_learn(labels: list[int], share: float, seed: int) -> None:
    given, held = np.array(labels, np.int64), round(share * len(labels))
    try:
        parts = train_test_split(np.arange(len(given)), test_size=held, stratify=given, random_state=seed)
    except ValueError:
        with pytest.raises(TooFewError):
            stratified(given, held, seed)
    else:
        for found, part in zip(stratified(given, held, seed), parts, strict=True):
            np.testing.assert_array_equal(found, np.sort(part))


def test_digits_are_those_of_scikit_learn() -> None:
    found, bunch = Digits(DataSettings(kind="digits", resolution=8, channels=1)), load_digits()
    np.testing.assert_array_equal(found.labels, bunch.target)
    assert found.class_names == tuple(map(str, bunch.target_names))
    x_B1HW = found.images(np.arange(len(found.labels)), None)
    np.testing.assert_allclose(x_B1HW[:, 0], bunch.images / 16, atol=1e-6)


@pytest.mark.long
def test_splits_of_digits_wait_for_no_import_of_scikit_learn() -> None:
    words = 'from tasks.data import DataSettings, load_splits; load_splits(DataSettings(kind="digits"))'
    script = f"import sys; {words}; print([name for name in sys.modules if name in ('sklearn', 'scipy.stats')])"
    assert subprocess.check_output([sys.executable, "-c", script], text=True).strip() == "[]"
