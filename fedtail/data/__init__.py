"""Data: sources, long tails, partitions, splits and federations."""
