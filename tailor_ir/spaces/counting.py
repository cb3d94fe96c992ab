"""The exact number of different SubNets of a space.

Different SubNets are different canonical codes. A code is canonical where every rule leaves it as it is, so the count is a
sum of products of tables over few variables. Source: variable elimination (R. Dechter, *Bucket elimination*, Artificial
Intelligence 113, 1999).
"""

from collections.abc import Sequence
from math import prod

import numpy as np

from solvers.tables import Derived, spread
from tailor_ir.spaces.canonical import CanonicalChoices
from tailor_ir.spaces.presence import Variables

Factor = tuple[Variables, np.ndarray]  # ascending columns, and whole numbers of any size


def count(cardinalities: Sequence[int], rules: Sequence[CanonicalChoices], derived: Sequence[Derived] = ()) -> int:
    """The number of canonical codes. cardinalities: of the variables. derived: the columns behind them."""
    follows = [_follows(len(cardinalities) + number, one) for number, one in enumerate(derived)]
    factors = [*map(_canonical, rules), *follows]
    cardinalities = (*cardinalities, *[2] * len(derived))
    involved = {column for columns, _ in factors for column in columns}
    total = prod(n for column, n in enumerate(cardinalities) if column not in involved)
    while involved:
        variable = min(involved, key=lambda column: (_scope_size(column, factors, cardinalities), column))
        involved.remove(variable)
        together = [factor for factor in factors if variable in factor[0]]
        factors = [factor for factor in factors if variable not in factor[0]]
        factors.append(_summed(variable, together, cardinalities))
    return int(total * prod(int(values) for _, values in factors))


def _canonical(rule: CanonicalChoices) -> Factor:
    """1 where a rule leaves the variable's choice as it is, else 0."""
    columns = tuple(sorted((*rule.scope, rule.variable)))
    kept = rule.table == np.arange(rule.table.shape[-1])
    return columns, np.moveaxis(kept, -1, columns.index(rule.variable)).astype(int).astype(object)


def _follows(column: int, derived: Derived) -> Factor:
    """1 where a derived column is what it follows to be, else 0."""
    values = np.asarray(derived.values, bool)
    return (*derived.columns, column), np.stack([~values, values], axis=-1).astype(int).astype(object)


def _scope_size(variable: int, factors: Sequence[Factor], cardinalities: Sequence[int]) -> int:
    scope = {column for columns, _ in factors if variable in columns for column in columns}
    return prod(cardinalities[column] for column in scope)


def _summed(variable: int, factors: Sequence[Factor], cardinalities: Sequence[int]) -> Factor:
    """The product of the factors that a variable is in, summed over its choices."""
    scope = tuple(sorted({column for columns, _ in factors for column in columns}))
    product = np.ones([cardinalities[column] for column in scope], object)
    for columns, values in factors:
        product = product * spread(columns, values, scope)
    axis = scope.index(variable)
    return (*scope[:axis], *scope[axis + 1 :]), np.asarray(product.sum(axis=axis), object)
