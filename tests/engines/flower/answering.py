"""What a resident process is asked in tests: no PyTorch, so that it starts at once."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context


def answer(content: Any, context: Context, order: str = "") -> Any:
    """Do what the text says; answer with this process's number and the arrays that came."""
    groups, text = content
    word, _, rest = text.partition(" ")
    if word == "raise":
        raise ValueError("patient 0815 is ill")
    if word == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if word == "once" and not Path(rest).exists():
        Path(rest).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if word == "sleep":
        Path(rest).touch()
        time.sleep(600)
    if word == "keep":
        context.state.pop("1@1", None)
        context.state["1@2"] = ConfigRecord({"state": rest.encode()})
    return groups, f"{os.getpid()} {order} {context.node_config['partition-id']}"
