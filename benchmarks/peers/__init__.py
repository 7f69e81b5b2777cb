"""Other libraries beside this one: the same networks, samples and batches, in one process."""
