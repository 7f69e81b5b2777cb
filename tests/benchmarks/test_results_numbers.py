"""Numbers in the words of the page of results are those of the result files, as its tables are.

Where a result changes, the sentence that fails here says what the page should say.
"""

from __future__ import annotations

import json
from collections import Counter
from math import ceil
from statistics import fmean

import pytest

from benchmarks.claims.verdict import claims, judged, seen
from benchmarks.claims.verdict import results as claims_results
from benchmarks.comparison.overview import has_tail, mean_score
from benchmarks.comparison.page import RESULTS_PAGE, by_cell, of, paired, read
from benchmarks.comparison.ranks import mean_ranks
from benchmarks.comparison.scores import cost
from benchmarks.results_file import RESULTS

PAGE = " ".join(RESULTS_PAGE.read_text(encoding="utf-8").split())
DOCS = RESULTS_PAGE.parent
CELLS = read()
TEN = [name for name in CELLS if name.startswith("f_cifar10_")]
HUNDRED = [name for name in CELLS if name.startswith("f_cifar100_")]
HAPT, MITBIH, SPEECH, NONE = "r_hapt", "r_mitbih", "r_speech", "n_fashion_mnist"
COMMON = "c_cifar10"
SCRATCH = ["s_fashion_mnist_dir0.1", "s_fashion_mnist_dir0.5"]
RIDGE, LDA = "closed-form,head=ridge", "closed-form,head=lda"
WORDS = [
    *("none", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"),
    *("eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen"),
    *("nineteen", "twenty", "twenty-one", "twenty-two", "twenty-three", "twenty-four"),
]


def score(method: str, *cells: str, key: str = "balanced_accuracy", when: str = "kept") -> float:
    found = mean_score(method, {cell: CELLS[cell] for cell in cells}, key, when)
    assert found is not None
    return 100 * found


def above(
    method: str, *cells: str, beside: str = "fedavg", key: str = "balanced_accuracy"
) -> float:
    return score(method, *cells, key=key) - score(beside, *cells, key=key)


def gains(method: str) -> list[float]:
    """Return what a method is above FedAvg in its cells with a tail, the least first."""
    tailed = [name for name, cell in CELLS.items() if has_tail(cell) and method in cell]
    return sorted(above(method, name) for name in tailed)


def word(value: float) -> str:
    return WORDS[round(abs(value))]


def ahead(method: str, beside: str, cell: str) -> tuple[str, str]:
    found = paired(CELLS[cell], method, beside)
    mean, low, high = (
        f"{100 * x:.1f}".replace("-", "−") for x in (found.mean, found.low, found.high)
    )
    return mean, f"({low} to {high}"


def best(cell: str) -> float:
    """Return what the best federated method is ahead of SLAC."""
    return max(above(m, cell, beside="slac") for m in CELLS[cell] if "centralised" not in m)


def beside(method: str, other: str) -> float:
    """Return what a method is above FedAvg over the cells with a tail that another has, too."""
    both = [c for c, cell in CELLS.items() if has_tail(cell) and {method, other} <= set(cell)]
    return fmean(above(method, cell) for cell in both)


def measured(name: str) -> dict[str, dict[str, dict[str, float]]]:
    found: dict[str, dict[str, dict[str, float]]]
    found = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))["numbers"]
    return found


def verdicts(paper: str) -> Counter[str]:
    known = claims_results()
    return Counter(judged(each, seen(each, known)) for each in claims() if each.paper == paper)


def gain(paper: str, says: str) -> str:
    """Return what a claim's run gives, and what is printed, in points."""
    (claim,) = [each for each in claims() if each.paper == paper and says in each.says]
    found = seen(claim, claims_results())
    assert found is not None
    high, low = claim.printed(claim.recipe())
    return f"{found.gain.mean:.0f}; {high - low:.0f}"


def sentences() -> list[str]:
    """Return the pieces of sentences that hold numbers of the comparison."""
    few = [above(RIDGE, cell, beside="slac", key="few") for cell in TEN + HUNDRED]
    over = [best(cell) for cell in TEN + HUNDRED]
    over = [each for each in over if each > 0]
    people = {m: above(m, HAPT) for m in CELLS[HAPT]}
    rest = max(
        v for m, v in people.items() if m not in {"slac", "balancefl", "ccvr", "centralised"}
    )
    lade, bsm = ahead("lade", "slac", MITBIH), ahead("bsm", "slac", MITBIH)
    fedlc, creff = gains("fedlc"), gains("creff")
    reproduced = {p: verdicts(p)["reproduced"] for p in ("CReFF", "RedGrape", "BalanceFL")}
    held = CELLS[MITBIH]["bsm,prior=global"]["validation"]
    times = [cost("redgrape", "bytes", {c: CELLS[c] for c in some}) for some in (TEN, HUNDRED)]
    patients = {m: f"{above(m, MITBIH):.0f}" for m in CELLS[MITBIH]}
    untailed = {m: word(above(m, NONE)) for m in CELLS[NONE]}
    assert untailed["fedetf"] == untailed["bsm"]
    assert untailed["lade"] == untailed["fedlc"] == untailed["balancefl"]
    speakers = {m: word(above(m, SPEECH)) for m in CELLS[SPEECH]}
    strong, mild = (
        gain("FedLC", says).split("; ") for says in ("Under strong label skew", "Under milder skew")
    )
    ranks = mean_ranks(by_cell(of("f", CELLS)))
    rare = [score(method, *SCRATCH, key="few") for method in ("centralised", "slac")]
    common = {method: f"{score(method, COMMON):.0f}" for method in CELLS[COMMON]}
    learnt = [f"{100 * v:.0f}" for v in CELLS[SCRATCH[0]]["fedavg"]["kept"]["balanced_accuracy"]]
    rules = [rule for cell in measured("rounds").values() for rule in cell.values()]
    later = fmean(rule["last"] - rule["best"] for rule in rules)
    ablated = {key.partition("/")[0] for key in measured("slac")}
    skewed, milder = (f"{above('fedlc', cell):.0f}" for cell in SCRATCH)
    return [
        f"({ranks['slac']:.1f} and {ranks[RIDGE]:.1f} for ridge, which "
        f"{len(TEN + HUNDRED)} cells do not tell apart)",
        f"over `lade`'s six `slac` is at {beside('slac', 'lade'):+.1f}, over the "
        f"{word(len([c for c in CELLS if RIDGE in CELLS[c]]))} of `closed-form` at "
        f"{beside('slac', RIDGE):+.1f}.",
        f"({', '.join(learnt[:-1])} and {learnt[-1]} percent by seed)",
        f"by {later:.1f} points over {word(len(rules))} results",
        f"of {word(len(ablated))} of these cells",
        f"the {above('slac', SCRATCH[0]):.0f} points to `slac` there are",
        f"a new head: {common['ccvr']} percent where FedAvg has {common['fedavg']}, level with "
        f"RedGrape and LADE ({common['redgrape']} and {common['lade']}) and ahead of BSM, CReFF "
        f"and BalanceFL ({common['bsm']}, {common['creff']} and {common['balancefl']}); only "
        f"`slac` has more ({common['slac']}).",
        f"plain training is {word(above('centralised', *SCRATCH, beside='slac'))} points above "
        f"`slac` there, and level on the rare classes ({rare[0]:.1f} and {rare[1]:.1f})",
        f"`slac` and BalanceFL are {word(people['slac'])} points above FedAvg, CCVR",
        f"CCVR {word(people['ccvr'])}, the others at most {word(ceil(rest))};",
        f"with all data in one place it is {word(people['centralised'])}.",
        f"`lade` and `bsm` are {patients['lade']} and {patients['bsm']} points above FedAvg,",
        f"`slac` {patients['slac']}, the same loss with the counts of all patients "
        f"{patients['bsm,prior=global']}.",
        f"are {word(above('creff', MITBIH))} and {word(above('redgrape', MITBIH))} *below* it.",
        f"plain training is {word(above('centralised', MITBIH))} points above FedAvg",
        f"(`bsm,prior=global` has {100 * held:.0f} percent on them and "
        f"{score('bsm,prior=global', MITBIH):.0f} on the test)",
        f"RedGrape gains {above('redgrape', *TEN):.0f} points on ten classes at {word(times[0])} "
        f"times FedAvg's traffic, and {above('redgrape', *HUNDRED):.0f} on a hundred at "
        f"{times[1]:.0f} times.",
        f"`slac` is {untailed['slac']} points above FedAvg (FedETF and `bsm` {untailed['bsm']}, "
        f"`lade`, FedLC and BalanceFL {untailed['lade']}; RUCR loses {untailed['rucr']} and "
        f"FedLoGe {untailed['fedloge']}; with all data in one place it is "
        f"{untailed['centralised']}), and on words by speaker",
        f"on words by speaker {speakers['slac']}, where CCVR gains {speakers['ccvr']},",
        f"BalanceFL loses {speakers['balancefl']} and FedLoGe {speakers['fedloge']}:",
        f"{word(reproduced['CReFF'])} of CReFF's, {word(reproduced['RedGrape'])} of RedGrape's and "
        f"{word(reproduced['BalanceFL'])} of BalanceFL's are reproduced",
        f"({gain('GBME', 'far above').replace(';', ' points above FedAvg; printed:')})",
        f"with all clients is open ({gain('RedGrape', 'With all clients')})",
        f"both of FedLC's above FedAvg ({strong[0]} and {mild[0]}; {strong[1]} and {mild[1]})",
        f"adds to its other parts ({gain('BalanceFL', 'Smooth regularisation')})",
        f"{word(fmean(fedlc))} points on average over the cells with a tail",
        f"(Fashion-MNIST-LT, {skewed} and {milder}); elsewhere it is at most "
        f"{word(ceil(fedlc[-3]))},",
        f"CReFF is below FedAvg in {word(sum(g < 0 for g in creff))} of {word(len(creff))} cells.",
        f"the ridge is {min(few):.0f} to {max(few):.0f} points ahead on images.",
        f"some method is {min(over):.1f} to {max(over):.1f} ahead in {word(len(over))} of the",
        f"LDA alone is {above(LDA, 'p_speech', beside='slac'):.0f} ahead:",
        f"`lade` is {lade[0]} ahead {lade[1]}, paired by seed) and `bsm` {bsm[0]} {bsm[1]}).",
    ]


@pytest.mark.parametrize("piece", sentences())
def test_the_page_says_what_the_files_do(piece: str) -> None:
    assert piece in PAGE


def test_the_page_on_choosing_says_what_the_files_do() -> None:
    page = " ".join((DOCS / "how-to" / "choose-a-method.md").read_text(encoding="utf-8").split())
    behind = {name: best(name) for name, cell in CELLS.items() if has_tail(cell)}
    assert {name for name, far in behind.items() if far > 1} == {"p_speech", MITBIH}
    lade, bsm = (above(method, MITBIH, beside="slac") for method in ("lade", "bsm"))
    assert f"where LDA alone is {behind['p_speech']:.0f} points ahead" in page
    assert f"where `lade` and `bsm` are {lade:.0f} and {bsm:.0f} ahead" in page


def test_the_rules_of_the_doctor_say_what_the_files_do() -> None:
    page = " ".join((DOCS / "how-to" / "doctor.md").read_text(encoding="utf-8").split())
    words = [f"{above(method, SPEECH):.0f}" for method in ("slac", "ccvr", "fedlc")]
    assert f"words by speaker, tuned: {words[0]}, {words[1]} and {words[2]}" in page
    assert f"Fashion-MNIST, α = 0.1, tuned: `slac` {above('slac', NONE):.0f} |" in page


def test_fedlc_and_creff_gain_least_of_the_papers_methods() -> None:
    methods = ("redgrape", "balancefl", "fedlc", "gbme", "creff")
    means = {method: fmean(gains(method)) for method in methods}
    assert set(sorted(means, key=lambda m: means[m])[:2]) == {"fedlc", "creff"}
    assert word(means["creff"]) == word(means["fedlc"])
