"""`fedtail audit`: what a run's server could learn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedtail.cli.options import TrustPlugins
from fedtail.cli.tables import make_console
from fedtail.files import write_atomic

if TYPE_CHECKING:
    from fedtail.privacy.audit import Audit
    from fedtail.privacy.moment_audit import MomentLeak

EXAMPLES = """Examples:

fedtail audit runs/digits-fedavg-seed0

fedtail audit runs/digits-creff-seed0 --epsilon 1
"""


def audit_command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="the folder of a finished run")],
    epsilon: Annotated[
        float,
        typer.Option(min=1e-3, metavar="E", help="epsilon of one update with local noise"),
    ] = 8.0,
    trust_plugins: TrustPlugins = False,
) -> None:
    """Measure what the server of a run could learn about its clients.

    The first round is replayed with every client. What the server sees of it is attacked as the
    run's method sends it, and as it would be encrypted or differentially private. The page is also
    in RUN/audit.md, the numbers in RUN/audit.json.
    """
    from fedtail.cli.execute import reopen
    from fedtail.folder import RunFolder
    from fedtail.privacy.audit import audit
    from fedtail.setting import prepare

    folder = RunFolder(run)
    setting = prepare(reopen(folder, trust_plugins))
    found = audit(folder, setting, epsilon)
    page = as_page(found)
    write_atomic(folder.path / "audit.json", json.dumps(found.plain(), indent=1))
    write_atomic(folder.path / "audit.md", page)
    make_console().print(page, markup=False, highlight=False, soft_wrap=True)


def as_page(found: Audit) -> str:
    """Return the audit as Markdown, readable as it is."""
    lines = [
        f"# What the server of this {found.method} run could learn",
        "",
        f"{found.clients} clients, {found.classes} classes. Protection of the run: {found.used}.",
        "",
        "Round 1, replayed with every client:",
        "",
        "| protection | largest class named | distance | (blind) | classes held, AUC |",
        "|---|---|---|---|---|",
    ]
    for view in found.views:
        labels = view.labels
        cells = [
            view.protection,
            "-" if labels is None else f"{labels.largest:.0%}",
            "-" if labels is None else f"{labels.distance:.3f}",
            "-" if labels is None else f"{labels.blind:.3f}",
            "-" if view.presence is None else f"{view.presence:.3f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", *(f"- {view.protection}: the server sees {view.note}." for view in found.views)]
    if found.refused:
        lines.append(f"- This method cannot be protected: {found.refused}.")
    lines += [
        "",
        "Largest class named: how many clients' most frequent class the change of the classifier",
        "gives away. Distance: total variation between guessed and true class shares, 0 is knowing",
        "them; blind is what the shares of all clients together would give. Classes held: telling",
        "the classes of a client from its class gradients, 1 is certainty, 0.5 chance; without",
        "protection the classes are named beside the gradients.",
        "",
        "The model that was shipped:",
        "",
        f"- Membership: {_number(found.member_advantage)} (advantage of a loss threshold; 0 is "
        "chance, 1 certainty).",
    ]
    if found.features is not None:
        made, unseen, noise = found.features
        lines.append(
            f"- Features that the server made: mean largest cosine with training features of the "
            f"class {made:.3f}; of test samples {unseen:.3f}, of noise {noise:.3f}."
        )
    if found.moments is not None:
        lines += ["", *_of_moments(found.moments)]
    lines += ["", "These attacks are simple: what they do not find may still be there.", ""]
    return "\n".join(lines)


def _of_moments(leak: MomentLeak) -> list[str]:
    lines = [
        "Sums of features, as they are sent without protection:",
        "",
        f"- {leak.alone} of {leak.samples} samples are their client's only one of their class: the "
        "class sum is the sample's feature vector.",
    ]
    if leak.small:
        lines += [
            f"- {leak.small} clients have fewer samples than the {leak.width} features. Of the "
            f"{leak.attacked} smallest (up to {leak.largest} samples):",
            "  telling their samples from test samples by the span of their second moments has an "
            f"AUC of {_number(leak.members)} (1 is certainty, 0.5 chance);",
            "  features that were computed from these sums have a mean largest cosine of "
            f"{_number(leak.recovered)} with the real ones, both less the mean of all; random ones "
            f"with the same second moments {_number(leak.chance)}.",
        ]
    return lines


def _number(value: float | None) -> str:
    return "not measured" if value is None else f"{value:.3f}"
