"""Several runs as one: what is planned, done side by side, averaged over seeds and compared."""
