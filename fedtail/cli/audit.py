"""`fedtail audit`: what a run's server could learn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedtail.cli.options import TrustPlugins
from fedtail.cli.tables import make_console
from fedtail.errors import FedtailError
from fedtail.files import write_atomic

if TYPE_CHECKING:
    from fedtail.privacy.audit import Audit, View
    from fedtail.privacy.moment_audit import MomentLeak

FEWEST_SHADOWS = 4
VIEW_COLUMNS = (
    "protection",
    "largest class named",
    "distance",
    "(blind)",
    "classes held, AUC",
    "members, AUC",
    "found at 1 %",
    "one sample, error",
    "cosine",
)
EXAMPLES = """Examples:

fedtail audit runs/digits-slac-seed0

fedtail audit runs/digits-creff-seed0 --epsilon 1

fedtail audit runs/digits-slac-seed0 --shadows 64 --runs 32
"""


def audit_command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="the folder of a finished run")],
    epsilon: Annotated[
        float,
        typer.Option(min=1e-3, metavar="E", help="epsilon of one update with local noise"),
    ] = 8.0,
    shadows: Annotated[
        int,
        typer.Option(
            min=0,
            metavar="N",
            help="times that round 1 is trained again, for the membership attack on updates",
        ),
    ] = 16,
    runs: Annotated[
        int,
        typer.Option(
            min=0,
            metavar="N",
            help="times that the whole run is done again, for the membership attack on its model",
        ),
    ] = 0,
    trust_plugins: TrustPlugins = False,
) -> None:
    """Measure what the server of a run could learn about its clients.

    The first round is replayed with every client. What the server sees of it is attacked as the
    run's method sends it, and as it would be with secure aggregation, with central or local noise,
    and with both: class shares, classes held, which samples were trained on (LiRA with shadow
    models; 4 of them at least), and the features of samples that are their client's only one of a
    class. The page is also in RUN/audit.md, the numbers in RUN/audit.json.
    """
    from fedtail.cli.execute import reopen
    from fedtail.folder import RunFolder
    from fedtail.privacy.audit import audit
    from fedtail.setting import prepare

    for flag, number in (("--shadows", shadows), ("--runs", runs)):
        if 0 < number < FEWEST_SHADOWS:
            raise FedtailError(
                f"{flag} {number}: the membership attack needs {FEWEST_SHADOWS} shadow models or "
                "more, half of them with each sample; 0 leaves it out"
            )
    folder = RunFolder(run)
    setting = prepare(reopen(folder, trust_plugins))
    found = audit(folder, setting, epsilon, shadows, runs)
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
        f"| {' | '.join(VIEW_COLUMNS)} |",
        "|---" * len(VIEW_COLUMNS) + "|",
        *(f"| {' | '.join(_cells(view))} |" for view in found.views),
    ]
    lines += ["", *(f"- {view.protection}: the server sees {view.note}." for view in found.views)]
    if found.refused:
        lines.append(f"- This method cannot be protected: {found.refused}.")
    lines += [
        "",
        "Largest class named: how many clients' most frequent class the change of the classifier",
        "gives away. Distance: total variation between guessed and true class shares, 0 is knowing",
        "them; blind is what the shares of all clients together would give. Classes held: telling",
        "the classes of a client from its class gradients, or from the change of the classifier, 1",
        "is certainty, 0.5 chance; class gradients without protection have their classes beside",
        "them.",
        *_of_members(found),
        *_of_singles(found),
        "",
        "The model that was shipped:",
        "",
        "- Membership: not measured; --runs 16 does the run again 16 times for it."
        if found.members is None
        else f"- Membership: AUC {found.members.auc:.3f}, {found.members.found:.1%} found at 1 % "
        f"false alarms ({found.members.samples} samples, {found.members.shadows} shadow runs).",
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


def _cells(view: View) -> list[str]:
    labels, members, inverted = view.labels, view.members, view.inversion
    return [
        view.protection,
        "-" if labels is None else f"{labels.largest:.0%}",
        "-" if labels is None else f"{labels.distance:.3f}",
        "-" if labels is None else f"{labels.blind:.3f}",
        "-" if view.presence is None else f"{view.presence:.3f}",
        "-" if members is None else f"{members.auc:.3f}",
        "-" if members is None else f"{members.found:.1%}",
        "-" if inverted is None else f"{inverted.error:.3g}",
        "-" if inverted is None else f"{inverted.cosine:.3f}",
    ]


def _of_members(found: Audit) -> list[str]:
    members = found.views[0].members
    if members is None:
        return ["Members were not attacked."]
    return [
        f"Members: telling {members.samples} samples that a client trained on from as many of the",
        f"same classes that nobody did, by likelihood ratios of {members.shadows} shadow models "
        "(LiRA);",
        "AUC (0.5 is chance), and members found at 1 % false alarms (1 % is chance).",
    ]


def _of_singles(found: Audit) -> list[str]:
    inverted = found.views[0].inversion
    if inverted is None:
        return ["One sample: no client has a class of one sample, or no linear head is sent."]
    return [
        f"One sample: features of {inverted.samples} samples that are their client's only one of a",
        "class, computed from its class gradient or from the change of the classifier. Median",
        "relative error, and mean cosine of both less the mean of test features; 0 and 1 are",
        f"knowing them, {inverted.blind_error:.3g} and {inverted.blind_cosine:.3f} what the mean "
        "of the class's test samples has, which tells of nobody.",
    ]


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
