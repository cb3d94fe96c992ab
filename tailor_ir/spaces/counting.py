"""The exact number of different SubNets of a space.

Different SubNets have different canonical codes. A code is canonical if no rule changes it, so the count is a sum of products
of tables over few variables. Source: variable elimination (R. Dechter, *Bucket elimination*, Artificial Intelligence 113,
1999). The number can exceed the machine's integers: it is computed modulo several primes, and reconstructed from the
remainders.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import islice
from math import isqrt, prod

import numpy as np

from solvers.tables import Derived, spread
from tailor_ir.spaces.canonical import CanonicalChoices
from tailor_ir.spaces.presence import Variables

Factor = tuple[Variables, np.ndarray]
"""Ascending columns; remainders, one axis for the primes and one for each column."""
LARGEST_PRIME = 2**31 - 1  # products of two remainders are below 2^63


def count(cardinalities: Sequence[int], rules: Sequence[CanonicalChoices], derived: Sequence[Derived] = ()) -> int:
    """The number of canonical codes. cardinalities: of the variables. derived: the columns after them."""
    primes = _primes_beyond(prod(cardinalities))
    follows = [_follows(len(cardinalities) + number, one) for number, one in enumerate(derived)]
    factors: list[Factor] = [(columns, values[None]) for columns, values in (*map(_canonical, rules), *follows)]
    cardinalities = (*cardinalities, *[2] * len(derived))
    involved = {column for columns, _ in factors for column in columns}
    alone = prod(n for column, n in enumerate(cardinalities) if column not in involved)
    moduli = np.asarray(primes, np.int64)
    while involved:
        variable = min(involved, key=lambda column: (*_scope_size(column, factors, cardinalities), column))
        involved.remove(variable)
        together = [factor for factor in factors if variable in factor[0]]
        factors = [factor for factor in factors if variable not in factor[0]]
        factors.append(_summed(variable, together, cardinalities, moduli))
    remainders = np.full(len(primes), 1, np.int64)
    for _, values in factors:
        remainders = remainders * values % moduli
    return alone * _from_remainders(remainders.tolist(), primes)


def _primes_beyond(number: int) -> tuple[int, ...]:
    """Some of the largest primes below 2^31, whose product exceeds a number; each of them is above 2^30."""
    return _primes(number.bit_length() // 30 + 1)


@cache
def _primes(count: int) -> tuple[int, ...]:
    """The largest primes below 2^31, in descending order."""
    return tuple(islice(_descending(), count))


def _descending() -> Iterator[int]:
    divisors = np.arange(3, isqrt(LARGEST_PRIME) + 1, 2)
    for number in range(LARGEST_PRIME, 2, -2):
        if (number % divisors).all():
            yield number


def _from_remainders(remainders: Sequence[int], primes: Sequence[int]) -> int:
    """The number below the product of the primes with these remainders. Source: the Chinese remainder theorem."""
    number, modulus = 0, 1
    for remainder, prime in zip(remainders, primes, strict=True):
        number += modulus * ((remainder - number) * pow(modulus, -1, prime) % prime)
        modulus *= prime
    return number


def _canonical(rule: CanonicalChoices) -> tuple[Variables, np.ndarray]:
    """1 if a rule does not change the variable's choice, else 0."""
    columns = tuple(sorted((*rule.scope, rule.variable)))
    kept = rule.table == np.arange(rule.table.shape[-1])
    return columns, np.moveaxis(kept, -1, columns.index(rule.variable)).astype(np.int64)


def _follows(column: int, derived: Derived) -> tuple[Variables, np.ndarray]:
    """1 if a derived column has the value that follows from its columns, else 0."""
    values = np.asarray(derived.values, bool)
    return (*derived.columns, column), np.stack([~values, values], axis=-1).astype(np.int64)


def _scope_size(variable: int, factors: Sequence[Factor], cardinalities: Sequence[int]) -> tuple[int, int]:
    """Columns and entries of the table for eliminating a variable; eliminating the fewest columns first keeps tables small."""
    scope = {column for columns, _ in factors if variable in columns for column in columns}
    return len(scope), prod(cardinalities[column] for column in scope)


def _summed(variable: int, factors: Sequence[Factor], cardinalities: Sequence[int], moduli: np.ndarray) -> Factor:
    """The product of the factors that contain a variable, summed over its choices."""
    scope = tuple(sorted({column for columns, _ in factors for column in columns}))
    over = moduli.reshape(-1, *(1,) * len(scope))
    product = np.ones([len(moduli), *(cardinalities[column] for column in scope)], np.int64)
    for columns, values in factors:
        product *= np.stack([spread(columns, each, scope) for each in values])
        product %= over
    axis = scope.index(variable)
    left = (*scope[:axis], *scope[axis + 1 :])
    return left, product.sum(axis=axis + 1) % moduli.reshape(-1, *(1,) * len(left))
