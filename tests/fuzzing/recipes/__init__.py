"""What networks are made of: a recipe adds an operator, or a group of them as people write it, to a draft."""

from tests.fuzzing.recipes import elementwise, later, layers, layout, sequences, spatial
from tests.fuzzing.recipes.record import Recipe

RECIPES: tuple[Recipe, ...] = tuple(
    recipe for family in (elementwise, layers, layout, sequences, spatial, later) for recipe in family.RECIPES
)

__all__ = ["RECIPES", "Recipe"]
