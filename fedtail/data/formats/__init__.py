"""Readers of file formats that several sources share; none of them runs code from a file."""
