"""The Flower engine: the same methods, across processes and machines."""
