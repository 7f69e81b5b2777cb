"""Figures and tables of the papers, redrawn at a scale that one processor does in minutes."""
