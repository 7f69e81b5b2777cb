"""The papers' tables as recipes: protocol, reference values, and what we measure beside them."""

from fedtail.reproduce.recipe import Cell, Recipe, find, load_recipe, recipes

__all__ = ["Cell", "Recipe", "find", "load_recipe", "recipes"]
