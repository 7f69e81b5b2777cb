"""`fedtail keys`: the keys of encrypted aggregation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

EXAMPLES = """Examples:

fedtail keys federation-keys

fedtail run --encrypt keys=federation-keys
"""


def keys(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="a new folder for both files")],
) -> None:
    """Make the keys of a federation that encrypts its updates.

    Every client gets the secret key, by a way that the server does not see; the server gets the
    public file only, with which it adds ciphertexts and reads none. A run without keys makes its
    own, for itself.
    """
    from fedtail.privacy.ckks import PUBLIC, SECRET, make_keys

    make_keys(folder)
    print(f"{folder / SECRET}  for every client, and for nobody else")
    print(f"{folder / PUBLIC}  for the server")
