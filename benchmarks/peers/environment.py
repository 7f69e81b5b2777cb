"""The peers' own environment: beside that of this library, with the same torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".venv-peers"
STEPS = (
    # This library with Flower and Ray, as it is installed anywhere.
    ("--editable", f"{ROOT}[flower]"),
    # The peers without what they ask for: torchvision would bring another build of torch, and pfl
    # bounds dp-accounting, which is not used here, below the version that this library has.
    ("--no-deps", "fedlab==1.3.0", "pfl==0.6.0", "fluke-fl==0.8.1", "opacus==1.6.0"),
    # What they import of it.
    ("pynvml", "pandas", "multiprocess", "dp-accounting", "prv-accountant"),
    ("torchmetrics", "datasets", "wandb", "tensorboard", "clearml", "seaborn"),
    ("diskcache", "cerberus", "hydra-core", "omegaconf", "opt_einsum"),
)


def python() -> Path:
    """Return the interpreter of the environment, which is made if it is not there."""
    found = FOLDER / "bin" / "python"
    stamp = FOLDER / ".installed"
    if not stamp.exists():
        subprocess.run([sys.executable, "-m", "venv", str(FOLDER)], check=True)
        pip = [str(found), "-m", "pip", "install", "--quiet"]
        for step in STEPS:
            pinned = ["--constraint", str(ROOT / "constraints.txt")]
            subprocess.run([*pip, *pinned, *step], check=True, cwd=ROOT)
        stamp.touch()
    return found
