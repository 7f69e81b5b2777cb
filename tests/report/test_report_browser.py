"""The page in a real Chromium: it loads without a complaint, sorts, toggles, zooms and follows.

Needs the package `playwright` and an installed `chromium`; nothing is downloaded.
"""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from command_line import fedtail, write_npz
from feature_views import make_view
from run_folders import SPLIT, record, write_run

from fedtail.report import make_server, write_report

pytestmark = pytest.mark.slow

Open = Callable[..., Any]
PHONE = {"width": 390, "height": 800}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api")
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("there is no chromium")
    with api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def opened(browser: Any) -> Iterator[Open]:
    """Return what opens a page; whatever the page complains of fails the test."""
    complaints: list[str] = []
    asked: list[str] = []
    contexts = []

    def open_page(address: str, **options: Any) -> Any:
        contexts.append(browser.new_context(**options))
        page = contexts[-1].new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(address)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []
    assert [a for a in asked if not a.startswith(("file:", "data:", "http://127.0.0.1"))] == []


@pytest.fixture
def study(tmp_path: Path) -> Path:
    table = {
        "classes": ["cat", "dog", "<b>owl</b>"],
        "confusion": [[3, 1, 0], [0, 4, 0], [2, 1, 1]],
    }
    for name, best in (("fedavg", 0.5), ("creff", 0.9), ("fedlc", 0.7)):
        for seed in (0, 1):
            records = [
                record(at, best * at / 4 + seed / 50, many=0.9, few=best / 2, per_class=[best] * 3)
                for at in range(1, 5)
            ]
            split = {**SPLIT, "digest": f"d{seed}"}
            write_run(
                tmp_path / f"{name}{seed}",
                records,
                method={"name": name},
                seed=seed,
                split=split,
                confusion=table,
            )
    write_report(tmp_path / "report.html", [tmp_path])
    return tmp_path


@pytest.fixture
def featured(study: Path) -> str:
    """Return the address of the study's page with the features of two methods."""
    views = {"fedavg": make_view(), "creff": make_view(seed=1)}
    write_report(study / "features.html", [study], views)
    return (study / "features.html").as_uri()


def methods(page: Any) -> list[str]:
    return [text.strip() for text in page.locator("#summary tbody th").all_inner_texts()]


def test_the_table_sorts(study: Path, opened: Open) -> None:
    page = opened((study / "report.html").as_uri())
    page.click("#sort-accuracy")
    assert methods(page) == ["creff", "fedlc", "fedavg"]
    assert page.locator("th[aria-sort=descending]").inner_text().startswith("All")
    page.keyboard.press("Enter")  # the heading has kept the focus
    assert methods(page) == ["fedavg", "fedlc", "creff"]
    page.click("#sort-label")
    assert methods(page) == ["creff", "fedavg", "fedlc"]


def test_a_method_toggles(study: Path, opened: Open) -> None:
    page = opened((study / "report.html").as_uri())
    curves = page.locator("#rounds path.curve")
    assert curves.count() == 3
    button = page.get_by_role("button", name="creff", exact=True)
    button.focus()
    page.keyboard.press("Space")
    assert button.get_attribute("aria-pressed") == "false"
    assert curves.count() == 2
    assert page.locator("#chart-groups rect").count() == 4  # two methods, many and few
    button.click()
    assert curves.count() == 3


def test_curves_are_read_and_zoomed(study: Path, opened: Open) -> None:
    page = opened((study / "report.html").as_uri())
    page.focus("#rounds")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    told = page.locator("#chart-rounds [aria-live]").inner_text()
    # creff in round 2: 0.45 and 0.47, mean 46 %, deviation 0.0141.
    assert told.startswith("round 2: creff 46.0 ± 1.4, ")
    assert page.locator("#tip").is_visible()
    page.keyboard.press("+")
    assert page.locator("#rounds-reset").is_visible()
    page.keyboard.press("0")
    assert page.locator("#rounds-reset").is_hidden()
    box = page.locator("#rounds").bounding_box()
    page.mouse.move(box["x"] + 0.4 * box["width"], box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.8 * box["width"], box["y"] + 50, steps=3)
    page.mouse.up()
    assert page.locator("#rounds-reset").is_visible()


def test_another_score_is_drawn(study: Path, opened: Open) -> None:
    page = opened((study / "report.html").as_uri())
    page.click("#score-few")
    assert "accuracy, few (%)" in page.locator("#rounds").text_content()
    page.click("#score-loss")  # which no record has
    assert page.locator("#chart-rounds").inner_text() == "No round has this score yet."


def test_the_head_says_on_what(study: Path, opened: Open) -> None:
    page = opened((study / "report.html").as_uri())
    told = dict(
        zip(
            page.locator("#facts dt").all_inner_texts(),
            page.locator("#facts dd").all_inner_texts(),
            strict=True,
        )
    )
    assert told == {
        "Data": "3 classes, 17 training samples, 10 to 2 a class",
        "Clients": "2",
        "Rounds": "3",
        "Seeds": "0, 1",
    }
    assert page.locator("#cautions").is_hidden()
    write_run(study / "other", [record(1, 0.5)], data={"name": "<i>mine</i>"}, rounds=5)
    write_report(study / "report.html", [study])
    page = opened((study / "report.html").as_uri())
    cautions = page.locator("#cautions p").all_inner_texts()
    assert [text.partition(":")[0].partition(" (")[0] for text in cautions] == [
        "These runs are not on the same data",
        "These runs do not have the same number of rounds.",
        "These methods do not have the same seeds",
    ]
    assert "<i>mine</i>" in page.locator("#facts dd").first.inner_text()


def test_precision_and_recall_stand_beside_the_map(study: Path, opened: Open) -> None:
    page = opened((study / "report.html").as_uri())
    rows = [row.split() for row in page.locator("#class-scores tbody tr").all_inner_texts()]
    # Two seeds of [[3,1,0],[0,4,0],[2,1,1]]: dog is right 8 of 12 times it is called.
    assert rows[0] == ["dog", "8", "66.7", "100.0", "80.0"]
    assert rows[1] == ["<b>owl</b>", "8", "100.0", "25.0", "40.0"]
    assert rows[2] == ["cat", "8", "60.0", "75.0", "66.7"]
    # (66.7 + 100 + 60) / 3, (100 + 25 + 75) / 3, (80 + 40 + 66.7) / 3
    assert rows[3] == ["Mean", "of", "classes", "24", "75.6", "66.7", "62.2"]
    ticks = page.locator("#confusion-map .column-tick").all_text_contents()
    assert ticks == ["dog", "<b>owl</b>", "cat"]


def test_groups_are_drawn_over_rounds(study: Path, opened: Open) -> None:
    page = opened((study / "report.html").as_uri())
    assert page.locator("#curves-groups figure").count() == 2  # many and few; no record has medium
    assert page.locator("#rounds-few path.curve").count() == 3


def test_clients_have_a_panel(study: Path, opened: Open) -> None:
    page = opened((study / "report.html").as_uri())
    assert "client_test" in page.locator("#clients .note").inner_text()
    tested = {"worst": "<i>ward b</i>", "spread": [0.25, 0.375, 0.5, 0.625, 0.75]}
    last = record(
        2,
        0.5,
        clients=[0, 1],
        dropped=[{"client": 0, "reason": "late"}],
        traffic={"0": [100, 50], "1": [10, 14]},
        clients_test={**tested, "accuracy": {"ward a": 0.75, "<i>ward b</i>": 0.25}},
        validation={"accuracy": 0.375},
    )
    first = {**record(1, 0.4, validation={"accuracy": 0.25}), "clients": [1]}
    split = {**SPLIT, "clients": ["ward a", "<i>ward b</i>"]}
    write_run(study / "wards" / "a", [first, last], split=split)
    write_report(study / "wards.html", [study / "wards"])
    page = opened((study / "wards.html").as_uri())
    told = page.locator("#clients tbody tr").all_inner_texts()
    rows = [[cell.strip() for cell in row.split("\t")] for row in told]
    assert rows == [
        ["<i>ward b</i>", "25.0", "5", "2", "2", "0", "24 B"],
        ["ward a", "75.0", "12", "3", "1", "1", "150 B"],
    ]
    assert page.locator("#clients circle").count() == 2
    assert "Worst client: <i>ward b</i> (25.0 %)." in page.locator("#clients").inner_text()
    assert page.locator("#split-map .row-tick").all_text_contents() == ["ward a", "<i>ward b</i>"]
    assert page.locator("#validation path.curve").count() == 1
    plain = opened((study / "report.html").as_uri())
    assert plain.locator("#validation-section").is_hidden()


def test_one_point_is_no_curve(tmp_path: Path, opened: Open) -> None:
    write_run(tmp_path / "a", [record(3, 0.5, few=0.25)], finished=False)
    write_report(tmp_path / "report.html", [tmp_path])
    page = opened((tmp_path / "report.html").as_uri())
    assert page.locator("#chart-rounds").inner_text().startswith("One tested round so far, round 3")
    assert page.locator("#cost-section").is_hidden()
    assert page.locator("#curves-groups figure").count() == 0


def test_a_picture_is_saved_as_svg(study: Path, opened: Open, tmp_path: Path) -> None:
    page = opened((study / "report.html").as_uri())
    for name in ("confusion-map", "rounds", "classes"):
        with page.expect_download() as found:
            page.locator(f"figure:has(#{name}) .save, #chart-{name} .save").first.click()
        assert found.value.suggested_filename == f"{name}.svg"
        text = Path(found.value.path()).read_text(encoding="utf-8")
        root = ElementTree.fromstring(text)
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert root.get("width")
        assert "var(" not in text
        assert "font-size: 12px" in text  # the page's rules came along


def test_a_hundred_classes_on_a_phone(tmp_path: Path, opened: Open) -> None:
    rng = np.random.default_rng(0)
    names = [f"a class with a long name {c}" for c in range(100)]
    counts = rng.integers(0, 9, (60, 100))
    table = {"classes": names, "confusion": rng.integers(0, 9, (100, 100)).tolist()}
    split = {"digest": "d", "class_counts": counts.sum(0).tolist(), "counts": counts.tolist()}
    records = [record(at, 0.5, many=0.9, per_class=[0.5] * 100) for at in (1, 2)]
    write_run(tmp_path / "a", records, split=split, confusion=table)
    write_report(tmp_path / "report.html", [tmp_path])
    page = opened((tmp_path / "report.html").as_uri(), viewport=PHONE)
    assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
    for tick in ("#confusion-map .row-tick", "#confusion-map .column-tick", "#split-map .row-tick"):
        places = page.locator(tick)
        assert 5 <= places.count() <= 25
        # No name is cut off by the edge of the page.
        left = "all => Math.min(...all.map(one => one.getBoundingClientRect().left))"
        assert places.evaluate_all(left) >= 0


def test_maps_are_read_cell_by_cell(study: Path, opened: Open) -> None:
    page = opened((study / "report.html").as_uri())
    page.focus("#split-map")
    page.keyboard.press("ArrowDown")
    # By frequency: class 1 (10 samples), class 2 (5), class 0 (2).
    assert page.locator("#split .readout").inner_text() == "client 1, class dog: 4 samples"
    page.select_option("#split-choice", "1")
    page.focus("#confusion-map")
    page.keyboard.press("ArrowDown")
    told = page.locator("#confusion .readout").inner_text()
    assert told == "<b>owl</b> taken for dog: 25.0 % (2 samples)"  # 1 of 4, in two seeds


def dots(page: Any, line: int) -> dict[str, str]:
    """Return how each class of a map is drawn, by the class."""
    drawn = page.locator(f"#map-{line} .dot").all()
    return {one.get_attribute("data-class"): one.get_attribute("d") for one in drawn}


def test_features_are_there_when_asked_for(study: Path, featured: str, opened: Open) -> None:
    plain = opened((study / "report.html").as_uri())
    assert plain.locator("#features-section").is_hidden()
    assert plain.locator("#norms-section").is_hidden()
    page = opened(featured)
    assert page.locator("#features-section figure").count() == 2
    caption = page.locator("#features-section figcaption span").all_inner_texts()
    assert sorted(caption) == ["creff, seed 1", "fedavg, seed 0"]
    assert set(dots(page, 0)) == set(dots(page, 1)) == {"0", "1", "2"}
    assert page.locator("#norms path.curve").count() == 2
    page.get_by_role("button", name="creff", exact=True).click()
    assert page.locator("#features-section figure").count() == 1
    assert page.locator("#norms path.curve").count() == 1


def test_the_legend_toggles_classes_and_sorts(featured: str, opened: Open) -> None:
    page = opened(featured)
    legend = page.locator(".legend button")
    assert legend.all_inner_texts() == ["dog", "<b>owl</b>", "cat"]  # 10, 5 and 2 samples
    page.focus("#class-2")
    page.keyboard.press("Space")
    assert page.locator("#class-2").get_attribute("aria-pressed") == "false"
    assert set(dots(page, 0)) == set(dots(page, 1)) == {"0", "1"}
    page.keyboard.press("Space")  # the button has kept the focus
    assert set(dots(page, 0)) == {"0", "1", "2"}
    page.click("#classes-none")
    assert dots(page, 0) == {}
    page.click("#classes-0")  # only many
    assert set(dots(page, 0)) == {"1"}
    page.click("#classes-all")
    assert set(dots(page, 0)) == {"0", "1", "2"}
    page.select_option("#order-choice", label="by name")
    assert legend.all_inner_texts() == ["<b>owl</b>", "cat", "dog"]


def test_a_long_legend_stays_where_it_is(study: Path, opened: Open) -> None:
    counts = np.arange(300)[None, ::-1]
    view = make_view(
        classes=tuple(map(str, range(300))), counts=counts, norms=counts[:, ::-1] / 300.0
    )
    write_report(study / "long.html", [study], {"creff": view})
    page = opened((study / "long.html").as_uri())
    page.focus("#class-299")  # the last: the legend scrolls down to it
    scrolled = "document.querySelector('.legend').scrollTop"
    before = page.evaluate(scrolled)
    assert before > 0
    page.keyboard.press("Space")
    assert page.locator("#class-299").get_attribute("aria-pressed") == "false"
    assert page.evaluate(scrolled) == before


def test_marks_follow_the_chosen_client(featured: str, opened: Open) -> None:
    page = opened(featured)

    def shapes() -> dict[str, str]:
        drawn = dots(page, 0).items()
        return {c: "disc" if "a" in d else "cross" if "m0" in d else "triangle" for c, d in drawn}

    assert shapes() == {"0": "cross", "1": "disc", "2": "triangle"}  # few, many, medium
    page.select_option("#marks-choice", label="client 0: majority, minority, missing")
    assert shapes() == {"0": "triangle", "1": "disc", "2": "disc"}  # 2, 6 and 4 samples
    assert page.locator(".marks").inner_text().split() == ["majority", "minority", "missing"]


def test_a_map_is_read_by_mouse_and_keyboard(featured: str, opened: Open) -> None:
    page = opened(featured)
    page.locator("#map-0").scroll_into_view_if_needed()
    box = page.locator("#map-0").bounding_box()
    # x from 0 to 10, y from 0 to 9, one scale: y fills the height but for 16 of 430 on each side.
    scale, width, height = (430 - 32) / 9, 560, 430
    x, y = width / 2 + (9 - 5) * scale, height / 2 - (0 - 4.5) * scale
    page.mouse.move(box["x"] + x / width * box["width"], box["y"] + y / height * box["height"])
    told = page.locator("#tip").inner_text()
    assert told.startswith("class <b>owl</b>")
    assert "medium-shot" in told
    assert "taken for" in told
    assert "dog" in told
    page.focus("#map-0")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    readout = page.locator("figure:has(#map-0) .readout")
    assert readout.inner_text() == (
        "class <b>owl</b> (medium-shot, 5 training samples): 1 of 2 recognised"
    )
    assert page.locator("#map-0 .dot.dim").count() == 2
    page.keyboard.press("Escape")
    assert page.locator("#map-0 .dot.dim").count() == 0


def test_norms_are_read_as_a_table(featured: str, opened: Open) -> None:
    page = opened(featured)
    page.locator("#norms summary").click()
    rows = page.locator("#norms tbody tr").all_inner_texts()
    assert [row.split() for row in rows] == [
        ["dog", "10", "3.000", "3.000"],
        ["<b>owl</b>", "5", "2.000", "2.000"],
        ["cat", "2", "1.000", "1.000"],
    ]


def test_features_on_a_phone_in_the_dark(featured: str, opened: Open) -> None:
    page = opened(featured, viewport=PHONE, color_scheme="dark")
    assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
    fill = "getComputedStyle(document.querySelector('#map-0 .dot[data-class=\"1\"]')).fill"
    dark = page.evaluate(fill)
    page.get_by_role("button", name="Use the light theme").click()
    assert page.evaluate(fill) != dark


def test_the_features_of_a_real_run(tmp_path: Path, opened: Open) -> None:
    data = write_npz(tmp_path / "mine.npz")
    words = ["--data", data, "--clients", "3", "--rounds", "1", "--model", "mlp"]
    run, out = str(tmp_path / "run"), tmp_path / "r.html"
    assert fedtail("run", *words, "--out", run).code == 0
    done = fedtail("report", run, "--features", "--client", "1", "--out", str(out))
    assert (done.code, done.err) == (0, "")
    page = opened(out.as_uri())
    assert page.locator("#marks-choice").input_value() == "2"  # after many, medium, few; client 0
    assert sum(d.count("M") for d in dots(page, 0).values()) == 8  # all test samples


def test_light_and_dark(study: Path, opened: Open) -> None:
    page = opened((study / "report.html").as_uri(), color_scheme="dark")
    background = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(background) == "rgb(20, 23, 27)"
    page.get_by_role("button", name="Use the light theme").click()
    assert page.evaluate(background) == "rgb(255, 255, 255)"


def test_a_phone_scrolls_in_one_direction(study: Path, opened: Open) -> None:
    page = opened((study / "report.html").as_uri(), viewport=PHONE)
    assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]


def test_a_live_run_updates(tmp_path: Path, opened: Open) -> None:
    with make_server([tmp_path], 0) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            page = opened(f"http://127.0.0.1:{server.server_port}/")
            assert "holds no run" in page.locator("#error").inner_text()
            folder = write_run(tmp_path / "a", [record(1, 0.5)], finished=False)
            page.wait_for_selector("#error", state="hidden", timeout=30_000)
            cell = page.locator("#summary tbody td").nth(1)
            assert cell.inner_text() == "50.0"
            with (folder / "metrics.jsonl").open("a") as file:
                file.write(json.dumps(record(2, 0.625)) + "\n")
            cell.filter(has_text="62.5").wait_for(timeout=30_000)
            assert page.locator("#status").inner_text() == "live"
            assert page.locator("#summary tbody td").last.inner_text() == "2 of 3"
        finally:
            server.shutdown()
            thread.join()
