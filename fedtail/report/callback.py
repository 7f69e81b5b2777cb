"""``report.html``: every run leaves a page that shows it."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from fedtail.callbacks.base import Callback, Record
from fedtail.errors import FedtailError
from fedtail.report.page import write_report


class ReportFile(Callback):
    """Write the report of a run into its folder when it is over.

    Parameters
    ----------
    folder
        The run folder.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)

    def on_end(self, record: Record, model: Mapping[str, Tensor]) -> None:
        """Write the page."""
        # The run is done and its model is written: a page that `fedtail report` can make at any
        # time is no reason to call it failed.
        with contextlib.suppress(FedtailError):
            write_report(self.folder / "report.html", [self.folder])
