"""The papers' claims, and what our runs say of them."""
