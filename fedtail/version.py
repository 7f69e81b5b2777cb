"""The version, in one place: the build reads it here, and so do run folders."""

__version__ = "0.1.0"
