"""The documentation is run: examples, command lines, links, and the tables of the reference.

Each page is one namespace in one empty folder. A block with ``<!-- not run: reason -->`` on the
line before it is left out. A block with a title is also written to a file of that name.
"""

from __future__ import annotations

import itertools
import re
import runpy
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import typer
from PIL import Image
from typer.testing import CliRunner

import fedtail
from fedtail.callbacks import read_records
from fedtail.cli import app
from fedtail.config import Component, Config, Registry
from fedtail.data.augment import Augment
from fedtail.losses import LocalLoss
from fedtail.training import LocalTraining
from fedtail.training.priors import ClassPrior
from fedtail.training.samplers import BatchSampler

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
lists: Any = SimpleNamespace(**runpy.run_path(str(DOCS / "lists.py"), run_name="lists"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
FENCE = re.compile(
    r"(?P<before>[^\n]*)\n```(?P<language>\w+)(?P<info>[^\n]*)\n(?P<code>.*?)\n```", re.DOTALL
)
NEEDS_THE_HUB = "from flwr_datasets import"


@dataclass(frozen=True)
class Block:
    """One fenced block; `line` is that of its first line of code."""

    language: str
    title: str | None
    code: str
    line: int


def blocks(page: Path) -> list[Block]:
    """Return the blocks of a page that are to be run."""
    text = page.read_text(encoding="utf-8")
    found = []
    for match in FENCE.finditer(text):
        if match["before"].startswith("<!-- not run:") or NEEDS_THE_HUB in match["code"]:
            continue
        title = re.search(r'title="([^"]+)"', match["info"])
        line = text.count("\n", 0, match.start("code")) + 1
        found.append(Block(match["language"], title and title[1], match["code"], line))
    return found


def given(page: Path) -> dict[str, Any]:
    """Return the names that a page takes for granted in its examples."""
    if page.name == "choose-a-split.md":
        labels = np.repeat(np.arange(10), 100)
        return {"labels": labels, "class_names": [str(c) for c in range(10)]}
    if page.name == "own-data.md":
        draw_pictures()
        x, y = np.zeros((9, 4), np.float32), np.arange(9) % 3
        return {"x_train": x, "y_train": y, "x_test": x, "y_test": y} | dict.fromkeys(
            ("patients", "machine_of_each_sample", "machine_of_each_test_sample"), y
        )
    if page.name == "cli.md":
        np.savez("new.npz", x=np.zeros((3, 8, 8), np.uint8))
    if page.name == "metrics.md":
        batch = torch.zeros(20, 4), torch.arange(20) % 10
        return {"model": torch.nn.Linear(4, 10), "batches": [batch], "train_counts": [5] * 10}
    return {}


def draw_pictures() -> None:
    """Write a folder of images, larger than they are to become."""
    for part, animal, number in itertools.product(("train", "test"), ("cat", "dog"), range(3)):
        folder = Path("pictures", part, animal)
        folder.mkdir(parents=True, exist_ok=True)
        grey = 60 * number + 100 * (animal == "dog")
        Image.new("RGB", (80, 72), (grey, grey, grey)).save(folder / f"{number}.png")


def registries() -> list[Registry[Any]]:
    """Return every registry there is."""
    waiting, found = [Component], {}
    while waiting:
        cls = waiting.pop()
        waiting += cls.__subclasses__()
        if "registry" in vars(cls):
            found[id(cls.registry)] = cls.registry
    return list(found.values())


@contextmanager
def registered(classes: Mapping[int, dict[str, Any]] | None = None) -> Iterator[None]:
    """Put back what was registered and imported before, and begin with `classes` if given."""
    before = {id(registry): dict(registry._classes) for registry in registries()}
    modules = set(sys.modules)
    for registry in registries():
        registry._classes = dict((classes or before)[id(registry)])
    try:
        yield
    finally:
        for registry in registries():
            registry._classes = before[id(registry)]
        for name in set(sys.modules) - modules:
            if name.startswith("fedtail_plugin_"):
                del sys.modules[name]


def run_python(block: Block, page: Path, namespace: dict[str, Any]) -> None:
    """Run a block and the tests that it defines."""
    known = set(namespace)
    exec(compile("\n" * (block.line - 1) + block.code, str(page), "exec"), namespace)
    for name in sorted(set(namespace) - known):
        if name.startswith("test_"):
            namespace[name]()


def commands(block: Block) -> Iterator[list[str]]:
    """Yield the words of the lines that call fedtail."""
    for line in block.code.replace("\\\n", " ").splitlines():
        words = shlex.split(line.removeprefix("$ "), comments=True)
        if words[:1] == ["fedtail"]:
            yield words[1:]


def run_shell(block: Block, most_rounds: int = 3) -> None:
    """Run the command lines; many rounds are for the reader, a few show that it works."""
    for words in commands(block):
        for at, flag in enumerate(words):
            if flag == "--rounds":
                words[at + 1] = str(min(int(words[at + 1]), most_rounds))
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 0, f"{words}\n{result.output}\n{result.exception}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_examples_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    module = ModuleType("example")  # pydantic looks for the module of a class
    monkeypatch.setitem(sys.modules, "example", module)
    namespace = vars(module)
    namespace.update(given(page))
    installed = {id(registry): dict(registry._classes) for registry in registries()}
    with registered():
        for block in blocks(page):
            if block.title:
                Path(block.title).write_text(block.code + "\n", encoding="utf-8")
            if block.language == "python":
                run_python(block, page, namespace)
            elif block.language in ("bash", "console"):
                # A command line does not know what Python blocks have registered.
                with registered(installed):
                    run_shell(block)


def test_a_command_of_ours_is_run_or_marked() -> None:
    # A block in `sh` is for the reader's machine and never run: installing, cloning, make.
    unseen = [(page.name, b.code) for page in PAGES for b in blocks(page) if b.language == "sh"]
    assert [(page, code) for page, code in unseen if "fedtail " in code] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    targets = re.findall(r"\]\(([^)\s]+)\)", text)
    local = [t.partition("#")[0] for t in targets if not re.match(r"https?:|mailto:|#", t)]
    assert [t for t in local if not (page.parent / t).exists()] == []


def test_every_page_is_in_the_navigation() -> None:
    config = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    listed = set(re.findall(r"([\w/.-]+\.md)$", config, flags=re.MULTILINE))
    assert listed == {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}


def options(*path: str) -> set[str]:
    """Return the long flags of a command."""
    command: Any = typer.main.get_command(app)
    for name in path:
        command = command.commands[name]
    return {flag for p in command.params for flag in p.opts if flag.startswith("--")} - {"--help"}


def leaves(command: Any, *path: str) -> Iterator[tuple[str, ...]]:
    """Yield the words of every command that does something itself."""
    if not hasattr(command, "commands"):
        yield path
        return
    for name, inner in command.commands.items():
        yield from leaves(inner, *path, name)


TAKES: dict[tuple[str, ...], str] = {("tune",): "compare", ("doctor",): "run"}
"""Commands that take flags of another one, and whose section tells only the others."""


def test_the_command_line_reference_has_every_flag_and_no_other() -> None:
    page = (DOCS / "reference" / "cli.md").read_text(encoding="utf-8")
    shared = re.findall(r"^\| `(--[\w-]+).*?` \|(.*?)\|(.*?)\|(.*?)\|", page, flags=re.MULTILINE)
    for column, command in enumerate(("run", "compare", "split"), start=1):
        ticked = {row[0] for row in shared if row[column].strip()}
        assert ticked == options(command)
    root: Any = typer.main.get_command(app)
    for path in set(leaves(root)) - {("run",), ("compare",), ("split",)}:
        assert f"## `fedtail {' '.join(path)}" in page
        section = page.split(f"## `fedtail {' '.join(path)}", 1)[1].split("\n## ", 1)[0]
        shared_flags = options(TAKES[path]) if path in TAKES else set()
        told = set(re.findall(r"^\| `(--[\w-]+)", section, flags=re.MULTILINE))
        assert told == options(*path) - shared_flags


@pytest.mark.parametrize("path", sorted(TAKES))
def test_a_command_that_takes_flags_of_another_one_says_which_it_does_not(
    path: tuple[str, ...],
) -> None:
    page = (DOCS / "reference" / "cli.md").read_text(encoding="utf-8")
    section = page.split(f"## `fedtail {' '.join(path)}", 1)[1].split("\n## ", 1)[0]
    said = re.search(
        rf"^It takes the flags of `{TAKES[path]}` but ((?:`--[\w-]+`[,\s]*(?:and )?)+)",
        section,
        re.M,
    )
    assert said is not None
    assert set(re.findall(r"--[\w-]+", said[1])) == options(TAKES[path]) - options(*path)


def test_the_reference_has_every_file_of_a_run_and_every_key_of_its_records(tmp_path: Path) -> None:
    experiment = fedtail.Experiment(
        clients=4, rounds=1, validation=0.2, tail="exponential", method="fedavg"
    )
    private = {"epsilon": 8.0, "simulated": True}
    for name, one in {
        "plain": experiment,
        "private": experiment.but(validation=0, privacy=private),
    }.items():
        fedtail.run(one, out=tmp_path / name)
        told = (DOCS / "reference" / "run-folder.md").read_text(encoding="utf-8")
        files = {path.name for path in (tmp_path / name).iterdir()}
        assert {file for file in files if f"`{file}" not in told} == {"model.safetensors.sha256"}
        page = (DOCS / "reference" / "metrics.md").read_text(encoding="utf-8")
        record = read_records(tmp_path / name / "metrics.jsonl")[-1]
        keys = {*record, *record.get("privacy", {})}
        assert {key for key in keys if f"`{key}`" not in page} == set()


def row(name: str, cls: type[Config]) -> str:
    """Return the line of the experiment reference for one field."""
    field = cls.model_fields[name]
    default: Any = field.default
    if isinstance(default, Component):
        default = default.name
    elif isinstance(default, Config):
        default = "see below"
    elif isinstance(default, tuple):
        default = list(default)
    elif isinstance(default, bool):
        default = str(default).lower()
    shown = "" if default in (None, "") else default if default == "see below" else f"`{default}`"
    return f"| `{name}` | {shown} | {field.description} |"


@pytest.mark.parametrize(
    "cls",
    [
        fedtail.Experiment,
        fedtail.FedAvg,
        LocalTraining,
        Augment,
        fedtail.Validation,
        fedtail.Privacy,
    ],
)
def test_the_experiment_reference_has_every_field(cls: type[Config]) -> None:
    page = (DOCS / "reference" / "experiment.md").read_text(encoding="utf-8").splitlines()
    assert [row(name, cls) for name in cls.model_fields if row(name, cls) not in page] == []


def test_the_api_reference_has_every_public_name() -> None:
    page = (DOCS / "reference" / "api.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^(?:::: |\s+- )(?:fedtail\.)?(\w+)$", page, flags=re.MULTILINE))
    assert set(dir(fedtail)) - {"__version__"} <= listed


def test_what_the_pages_import_is_in_the_reference() -> None:
    pages = [page.read_text(encoding="utf-8") for page in (DOCS / "reference").glob("*.md")]
    listed = set(re.findall(r"^::: fedtail[\w.]*\.(\w+)$", "\n".join(pages), flags=re.MULTILINE))
    told = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    lines = re.findall(r"^[+ ]*from fedtail[\w.]* import ([\w, ]+)$", told, flags=re.MULTILINE)
    imported = {name for line in lines for name in line.split(", ")}
    assert imported - listed == set()


def methods_of_ours() -> list[tuple[str, type[fedtail.Method[Any]]]]:
    """Return the methods that fedtail has, without those that other tests have registered."""
    registry = fedtail.Method.registry
    every = [(name, registry[name]) for name in registry]
    return [(name, cls) for name, cls in every if cls.__module__.startswith("fedtail.")]


def test_every_method_has_a_page() -> None:
    # A page of its own, or that of its family: the index links the name to a page that names it.
    index = (DOCS / "methods" / "index.md").read_text(encoding="utf-8")
    linked = dict(re.findall(r"^\| \[`([^`]+)`\]\(([\w-]+\.md)(?:#[\w-]+)?\)", index, re.MULTILINE))
    for name, _ in methods_of_ours():
        page = (DOCS / "methods" / linked[name]).read_text(encoding="utf-8")
        assert linked[name] == f"{name}.md" or f"`{name}`" in page


@pytest.mark.parametrize("file", lists.FILES, ids=lambda path: path.name)
def test_the_lists_of_methods_are_those_of_their_classes(file: Path) -> None:
    assert file.read_text(encoding="utf-8") == lists.made(file), "run `make lists`"


@pytest.mark.parametrize("family", [LocalLoss, ClassPrior, BatchSampler], ids=lambda f: f.__name__)
@pytest.mark.parametrize("page", [ROOT / "README.md", DOCS / "methods" / "index.md"])
def test_the_lists_of_parts_have_all_of_them(page: Path, family: type[Component]) -> None:
    text, registry = page.read_text(encoding="utf-8"), family.registry
    ours = [name for name in registry if registry[name].__module__.startswith("fedtail.")]
    assert [name for name in ours if f"`{name}`" not in text] == []


def test_the_guide_names_every_method() -> None:
    guide = (DOCS / "how-to" / "choose-a-method.md").read_text(encoding="utf-8")
    assert {name for name, _ in methods_of_ours() if f"`{name}`" not in guide} == set()


def test_the_citation_is_of_this_version() -> None:
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {fedtail.__version__}\n" in citation


@pytest.mark.slow
def test_the_first_steps_say_what_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = DOCS / "first-steps.md"
    text = page.read_text(encoding="utf-8")
    for block in blocks(page):
        if block.language == "bash":
            run_shell(block, most_rounds=30)
    last = [
        read_records(tmp_path / "runs" / "compare" / f"fedavg{spec}-seed0" / "metrics.jsonl")[-1]
        for spec in ("", "-loss=balanced_softmax-prior=global", "-sampler=class_balanced")
    ]
    table = text.split("| | all | many |", 1)[1].splitlines()[2:5]
    keys = ("accuracy", "many", "medium", "few", "worst_class")
    for record, line in zip(last, table, strict=True):
        told = [float(cell) for cell in line.split("|")[2:-1]]
        # Another processor rounds differently, so the numbers are held to a few points.
        assert [100 * record[key] for key in keys] == pytest.approx(told, abs=6)
