"""What a person sees: plain lines without a terminal, a live display in one."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console
from tracked import info, play, record

from fedtail.callbacks import JsonLines, Progress
from fedtail.callbacks.progress import human_seconds


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def plain(clock: Clock | None = None) -> tuple[Progress, io.StringIO]:
    out = io.StringIO()
    return Progress(Console(file=out, force_terminal=False, width=40), clock or Clock()), out


def test_a_line_says_round_scores_traffic_and_time_left() -> None:
    clock = Clock()
    progress, out = plain(clock)
    progress.on_start(info())
    clock.now = 60.0
    progress.on_round(record(1))

    # One round a minute, three to come; `medium` was not defined; 3 KB a round.
    assert out.getvalue().splitlines() == [
        "demo: 4 rounds",
        "round 1/4  accuracy 0.1000  many 0.1000  few 0.0000  traffic 3.0 KB  3 min 00 s left",
    ]


def test_fast_rounds_are_thinned_out_but_the_last_is_shown() -> None:
    clock = Clock()
    progress, out = plain(clock)
    progress.on_start(info(rounds=100))
    for at in range(1, 101):
        clock.now += 0.1
        progress.on_round(record(at, accuracy=0.5))
    progress.close()

    shown = [line.split()[1] for line in out.getvalue().splitlines()[1:]]
    assert shown[0] == "1/100"
    assert shown[-1] == "100/100"
    assert len(shown) == len(set(shown)) <= 12  # ten seconds


def test_an_interrupted_run_shows_the_round_it_came_to() -> None:
    progress, out = plain()
    play(progress, info(), range(1, 4), ended=False)

    assert [line.split()[1] for line in out.getvalue().splitlines()[1:]] == ["1/4", "3/4"]


def test_a_round_without_evaluation_shows_no_score() -> None:
    progress, out = plain()
    progress.on_start(info())
    progress.on_round(record(1, accuracy=None, many=None, few=None))

    assert out.getvalue().splitlines()[1] == "round 1/4  traffic 3.0 KB  0 s left"


def test_a_warning_is_shown_once_and_as_it_is() -> None:
    progress, out = plain()
    progress.on_start(info())
    for _ in range(3):
        progress.on_warning(
            "client 3 was dropped: [red] late, as it has been in every round so far"
        )

    assert out.getvalue().splitlines()[1:] == [
        "warning: client 3 was dropped: [red] late, as it has been in every round so far"
    ]


def test_traffic_goes_on_after_a_resume(tmp_path: Path) -> None:
    play(JsonLines(tmp_path / "metrics.jsonl"), info(), range(1, 4), ended=False)
    clock = Clock()
    progress, out = plain(clock)
    progress.on_start(info(tmp_path, done=2))
    clock.now = 5.0
    progress.on_round(record(3))

    # Two rounds done before and this one, 3 KB each; one round of five seconds to come.
    lines = out.getvalue().splitlines()
    assert lines[0] == "demo: 4 rounds, continued after round 2"
    assert lines[1].endswith("traffic 9.0 KB  5 s left")


def test_the_live_display_ends_on_the_last_round() -> None:
    out = io.StringIO()
    progress = Progress(Console(file=out, force_terminal=True, width=120, color_system=None))
    progress.on_start(info())
    progress.on_warning("client 2 is late")
    for at in range(1, 5):
        progress.on_round(record(at))
    progress.close()
    progress.close()

    text = out.getvalue()
    assert text.count("warning: client 2 is late") == 1
    last = text[text.rindex("demo") :]
    assert "4/4" in last
    assert "accuracy 0.4000  many 0.4000  few 0.0000  traffic 12.0 KB  0 s left" in last


def test_the_time_left_counts_down_within_a_round() -> None:
    clock, out = Clock(), io.StringIO()
    console = Console(file=out, force_terminal=True, width=120, color_system=None)
    progress = Progress(console, clock)
    progress.on_start(info())
    clock.now = 20.0
    progress.on_round(record(1))
    clock.now = 25.0
    progress.close()

    # Three rounds of twenty seconds to come, five of them gone.
    assert "55 s left" in out.getvalue()


def test_standard_output_that_is_no_terminal_gets_lines_even_in_colour_forcing_ci(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    play(Progress(), info(), range(1, 2), ended=False)

    found = capsys.readouterr().out
    assert found.startswith("demo: 4 rounds\nround 1/4  accuracy 0.1000")
    assert "\x1b" not in found


def test_closing_what_never_started_is_harmless() -> None:
    plain()[0].close()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.2, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (3599, "59 min 59 s"),
        (7620, "2 h 07 min"),
    ],
)
def test_human_seconds(seconds: float, text: str) -> None:
    assert human_seconds(seconds) == text


def test_the_end_says_why_what_is_shipped_and_who_is_worst() -> None:
    progress, out = plain()
    progress.on_start(info(rounds=9))
    best = record(
        1,
        validation={"balanced_accuracy": 0.75, "kept": 1},
        clients_test={"worst": "232", "spread": [0.25, 0.5, 0.625, 0.75, 1.0]},
    )
    stopped = "no better balanced_accuracy in 1 validation since round 1"
    progress.on_round(best)
    progress.on_round(record(2, validation={"balanced_accuracy": 0.5, "kept": 1}, stopped=stopped))
    progress.on_end(best, {})
    progress.close()
    lines = out.getvalue().splitlines()
    assert "  validation 0.7500  traffic" in lines[1]
    assert lines[2].startswith("round 2/9")
    assert lines[3:] == [
        f"stopped after round 2: {stopped}",
        "round 1 is shipped: validation balanced_accuracy 0.7500",
        "accuracy by client: 0.2500 (worst, 232) to 1.0000, median 0.6250",
    ]
