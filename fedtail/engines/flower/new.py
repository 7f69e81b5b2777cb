"""`fedtail flower new`: a Flower app, ready to run and ready to be changed."""

from __future__ import annotations

import math
import re
from importlib.resources import files
from pathlib import Path
from string import Template

from fedtail.errors import FedtailError
from fedtail.files import make_folder, write_atomic
from fedtail.methods import Method
from fedtail.privacy.config import Privacy

TEMPLATE_FILES = {
    "pyproject.toml": "pyproject.toml",
    "README.md": "README.md",
    "task.py": "{package}/task.py",
    "server_app.py": "{package}/server_app.py",
    "client_app.py": "{package}/client_app.py",
}


def new_app(
    folder: Path,
    method: str = "creff",
    publisher: str = "me",
    epsilon: float = math.inf,
    secure: bool = False,
) -> list[Path]:
    """Write the app and return its files.

    Parameters
    ----------
    folder
        Where to; its name becomes the app's.
    method
        A registered method.
    publisher
        Whom Flower calls the app's publisher.
    epsilon
        The budget of differential privacy; infinite is none.
    secure
        Whether the server learns sums only.
    """
    Privacy(epsilon=epsilon)  # refuses what is none
    app = folder.resolve().name.lower().replace("_", "-")
    if not re.fullmatch(r"[a-z][a-z0-9-]*", app):
        raise FedtailError(
            f"'{folder.name}' cannot be the name of a Flower app: begin with a letter, go on with "
            "letters, digits and hyphens"
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FedtailError(f"'{folder}' is not an empty folder; choose another one")
    package = app.replace("-", "_")
    words = {
        "app": app,
        "package": package,
        "method": Method.registry[method].name,
        "publisher": publisher,
        "epsilon": repr(float(epsilon)),
        "secure": str(secure).lower(),
    }
    make_folder(folder / package)
    written = [folder / package / "__init__.py"]
    write_atomic(written[0], f'"""The Flower app {app}."""\n')
    for name, place in TEMPLATE_FILES.items():
        text = (files("fedtail.engines.flower") / "template" / f"{name}.txt").read_text("utf-8")
        written.append(folder / place.format(package=package))
        write_atomic(written[-1], Template(text).substitute(words))
    return written
