"""Keys by which nodes know each other in secure sums, whatever a server says."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from fedtail.errors import FedtailError
from fedtail.privacy.secure.crypto import KEY_BYTES, signing_public


def new_identity(file: Path) -> str:
    """Write a new private key to a file of its user's own, and return the public one."""
    private = secrets.token_bytes(KEY_BYTES)
    try:
        with os.fdopen(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as new:
            new.write(private.hex())
    except FileExistsError:
        raise FedtailError(f"'{file}' is there already; choose another name") from None
    except OSError as error:
        raise FedtailError(f"cannot write '{file}': {error.strerror}") from None
    return signing_public(private).hex()
