"""``report.html``: every run leaves a page that shows it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from fedtail.callbacks.base import Callback, Record


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
        # Imported when a run is over: until then nobody needs what draws.
        from fedtail.report.document import leave_report

        leave_report(self.folder)
