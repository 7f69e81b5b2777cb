"""The doctor's page: in the look of the report, without a script but for its colours."""

from __future__ import annotations

import json
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from fedtail.diagnosis.rules import RULES
from fedtail.diagnosis.words import bound, measured, verdict, what_else
from fedtail.files import write_atomic
from fedtail.metrics.traffic import human_bytes
from fedtail.report.document import page_policy, page_style
from fedtail.version import __version__

if TYPE_CHECKING:
    from fedtail.diagnosis.doctor import Diagnosis

SHOWN_CLASSES = 200
"""Classes of the table; of more, those with the most samples."""
DARK_SCRIPT = (
    "if (matchMedia('(prefers-color-scheme: dark)').matches) "
    "document.documentElement.dataset.theme = 'dark';"
)
VERDICT_COLOURS = {"yes": "--bad", "unsure": "--c4", "no": "--c2"}


def leave_diagnosis(diagnosis: Diagnosis, folder: Path) -> None:
    """Write the page, the numbers and the recommended experiment into a run folder."""
    write_atomic(folder / "doctor.html", doctor_page(diagnosis))
    write_atomic(folder / "doctor.json", json.dumps(diagnosis.to_json(), indent=1) + "\n")
    write_atomic(folder / "recommended.toml", diagnosis.toml)


def doctor_page(diagnosis: Diagnosis) -> str:
    """Return the page."""
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{page_policy(DARK_SCRIPT)}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<title>fedtail doctor</title>\n<link rel="icon" href="data:,">',
            f"<style>\n{page_style()}\n</style>\n<script>{DARK_SCRIPT}</script>\n</head>\n<body>",
            "<header><div><h1>fedtail doctor</h1>",
            f"<p>{escape(_about(diagnosis))}</p></div></header>\n<main>",
            *_advice(diagnosis),
            *_signals(diagnosis),
            *_classes(diagnosis),
            f"</main>\n<footer><p>fedtail {__version__}</p></footer>\n</body>\n</html>\n",
        ]
    )


def _about(diagnosis: Diagnosis) -> str:
    probe = diagnosis.probe
    return (
        f"{probe['rounds']} probe rounds of {probe['clients']} clients in {probe['groups']} groups"
        f", {human_bytes(probe['bytes'])}, {probe['seconds']:.0f} s. The server was shown sums of "
        "groups of clients; intervals are of 90 %, from how much the groups differ."
    )


def _advice(diagnosis: Diagnosis) -> Iterator[str]:
    yield f"<section><h2>What to do: <code>{escape(diagnosis.method)}</code></h2>"
    for sentence in (*diagnosis.because, bound(diagnosis), *what_else(diagnosis)):
        yield f"<p>{escape(sentence)}</p>"
    yield (
        f"<p>About {human_bytes(diagnosis.bytes)} to and from clients, {diagnosis.seconds:.0f} s "
        f"of training on this machine, for {diagnosis.recommended.rounds} rounds. Rule "
        f"{diagnosis.rule} of {len(RULES)}.</p>"
    )
    command = " ".join(["fedtail run ...", *diagnosis.words])
    yield f'<div class="scroll"><pre>{escape(command)}</pre></div>'
    yield "<details><summary>As TOML: recommended.toml</summary>"
    yield f'<div class="scroll"><pre>{escape(diagnosis.toml)}</pre></div></details></section>'


def _signals(diagnosis: Diagnosis) -> Iterator[str]:
    yield '<section><h2>Signals</h2><div class="scroll"><table class="plain"><thead><tr>'
    yield "<th>signal</th><th>reading</th><th>number</th><th>says</th></tr></thead><tbody>"
    for signal in diagnosis.signals.values():
        colour = VERDICT_COLOURS.get(signal.verdict, "--soft")
        said = escape(verdict(signal))
        yield (
            f"<tr><th>{signal.reading.id}</th><td>{escape(signal.reading.title)}</td>"
            f'<td>{escape(measured(signal))}</td><td style="color: var({colour})">{said}</td></tr>'
        )
    yield "</tbody></table></div></section>"


def _classes(diagnosis: Diagnosis) -> Iterator[str]:
    yield '<section><h2>Classes from head to tail</h2><div class="scroll"><table><thead><tr>'
    yield "<th>class</th><th>samples</th><th>clients that hold it</th><th>trained head</th>"
    yield "<th>closed form</th></tr></thead><tbody>"
    rows = sorted(diagnosis.classes, key=lambda row: -row["samples"])[:SHOWN_CLASSES]
    for row in rows:
        scores = "".join(
            f"<td>{'–' if row[k] is None else f'{100 * row[k]:.0f} %'}</td>"
            for k in ("trained", "closed")
        )
        yield (
            f"<tr><th>{escape(row['class'])}</th><td>{row['samples']:,}</td>"
            f"<td>{row['clients']}</td>{scores}</tr>"
        )
    yield '</tbody></table></div><p class="note">Accuracies on what clients hold out, after the '
    yield "probe.</p></section>"
