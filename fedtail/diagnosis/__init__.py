"""What is wrong with a federation, read from sums of a few rounds, and what to do about it."""
