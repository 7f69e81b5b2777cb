"""The comparison: every method under the protocols of `benchmarks/protocols`, tuned alike."""
