"""Writes what is said of all methods in one place, from their classes and pages: `make lists`.

A method's class says what it does, needs and sends. A page says which methods it is about, by its
name or in a line ``<!-- methods: a b -->``, and the navigation says in which order pages come. The
lists are committed, so that editors, type checkers and readers of the repository see them; a test
fails when one is not what this file makes.
"""

import importlib
import json
import pkgutil
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fedtail.methods
from fedtail.cli.methods import choices, family
from fedtail.cli.options import FLAGS, Flag
from fedtail.config import Component
from fedtail.experiment import Experiment
from fedtail.methods.base import Method
from fedtail.models import ModelSpec
from fedtail.report.features import SHOWN_SAMPLES
from fedtail.training import LocalTraining

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "docs" / "methods"
MORE = {
    "fedtail.methods.base": ["Method", "action"],
    "fedtail.methods.fedavg": ["LocalRun", "ModelState"],
}
"""What a method of one's own needs besides the methods, by module."""

Classes = list[type[Method[Any]]]


def ours() -> Classes:
    """Return the methods of fedtail, in the order of their pages."""
    for module in pkgutil.iter_modules(fedtail.methods.__path__, "fedtail.methods."):
        importlib.import_module(module.name)
    found = {n: Method.registry[n] for n in Method.registry}
    names = {n for n, cls in found.items() if cls.__module__.startswith("fedtail.methods.")}
    order = [name for page in navigation() for name in about(page)]
    missing = sorted(names - set(order))
    if missing:
        raise SystemExit(f"no page in mkdocs.yml is about: {', '.join(missing)}")
    return [found[name] for name in order if name in names]


def navigation() -> list[Path]:
    """Return the pages of methods as the site lists them."""
    listed = re.findall(r"methods/([\w-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    return [PAGES / name for name in listed if name != "index.md"]


def about(page: Path) -> list[str]:
    """Return the methods that a page is about."""
    said = re.search(r"^<!-- methods: (.+) -->$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return said[1].split() if said else [page.stem]


def link(name: str) -> str:
    """Return where a method is described: its page, and the heading there that begins its name."""
    page = next(page for page in navigation() if name in about(page))
    if page.stem == name:
        return page.name
    text = page.read_text(encoding="utf-8")
    slugs = [h.lower().replace(" ", "-") for h in re.findall(r"^## (.+)$", text, re.MULTILINE)]
    near = max((slug for slug in slugs if name.startswith(slug)), key=len, default="")
    return f"{page.name}#{near}" if near else page.name


def index() -> Iterator[str]:
    """Yield the table of all methods."""
    yield "| method | family | what it does | needs | extra traffic |"
    yield "|---|---|---|---|---|"
    for cls in ours():
        needs = "; ".join(cls.needs) or "nothing"
        cells = f"[`{cls.name}`]({link(cls.name)})", cls.family, _does(cls), needs, cls.traffic
        yield f"| {' | '.join(cells)} |"


def box() -> Iterator[str]:
    """Yield a line a page: what a method does where it is about one, else the methods."""
    classes = {cls.name: cls for cls in ours()}
    yield "| page | methods |"
    yield "|---|---|"
    for page in navigation():
        title = page.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
        held = [classes[name] for name in about(page)]
        said = f": {_does(held[0])}" if len(held) == 1 else ""
        yield f"| [{title}](docs/methods/{page.name}) | {_names(held)}{said} |"


def reference() -> Iterator[str]:
    """Yield the entries of the Python reference."""
    for cls in ours():
        yield f"::: fedtail.{cls.__name__}"


def needed() -> Iterator[str]:
    """Yield, for each thing that some method needs, the methods."""
    yield "| the method needs | methods |"
    yield "|---|---|"
    yield f"| nothing beyond FedAvg | {_names([cls for cls in ours() if not cls.needs])} |"
    for need in dict.fromkeys(need for cls in ours() for need in cls.needs):
        yield f"| {need} | {_names([cls for cls in ours() if need in cls.needs])} |"


def refused() -> Iterator[str]:
    """Yield why some methods cannot work with sums alone, as they come."""
    yield "| refused | because |"
    yield "|---|---|"
    for cls in ours():
        reason = cls().asks().single
        if reason:
            yield f"| `{cls.name}` | {reason} |"


def _does(cls: type[Method[Any]]) -> str:
    return (cls.__doc__ or "").strip().split("\n")[0].removesuffix(".")


def _names(classes: Classes) -> str:
    return ", ".join(f"`{cls.name}`" for cls in classes)


BLOCKS: dict[str, dict[str, Callable[[], Iterator[str]]]] = {
    "README.md": {"box": box},
    "docs/methods/index.md": {"index": index},
    "docs/reference/api.md": {"reference": reference},
    "docs/how-to/choose-a-method.md": {"needed": needed, "refused": refused},
}
"""Which blocks of which pages are made, by their names in the page."""


def package() -> str:
    """Return the file that exports the methods."""
    exported = {module: list(names) for module, names in MORE.items()}
    for cls in ours():
        exported.setdefault(cls.__module__, []).append(cls.__name__)
    imports = [
        f"from {m} import {', '.join(sorted(exported[m], key=_kind))}" for m in sorted(exported)
    ]
    names = sorted((name for names in exported.values() for name in names), key=_kind)
    listed = [f'    "{name}",' for name in names]
    opening = '"""Methods: one file each, named as in the paper. `make lists` writes this file."""'
    return "\n".join([opening, "", *imports, "", "__all__ = [", *listed, "]", ""])


def shown() -> str:
    """Return what the command line shows of fields and components without loading PyTorch."""
    fields = Experiment.model_fields
    named = {name: choices(field.annotation) for name, field in fields.items()}
    named["model"] = list(ModelSpec.registry)
    names = {
        kind: _ours(family(fields[kind].annotation), known)
        for kind, known in named.items()
        if known
    }
    helps = {name: _help(flag) for name, flag in FLAGS.items()}
    content = {"help": helps, "names": names, "samples": SHOWN_SAMPLES}
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def _help(flag: Flag) -> str:
    """Return a field's meaning and default, or what the flag itself says of them."""
    fields = {**LocalTraining.model_fields, **Experiment.model_fields}
    field = fields.get(flag.path.rpartition(".")[2])
    said = flag.text or str(field and field.description)
    default = field and field.default
    if default is None or default is False or "default" in said:
        return said
    shown = default.name if isinstance(default, Component) else default
    return f"{said} (default {f'{shown:g}' if flag.kind is float else shown})"


def _ours(kind: Any, names: list[str]) -> list[str]:
    """Return the names without those of plug-ins that other tests have registered."""
    registry = getattr(kind, "registry", None) or ModelSpec.registry
    return [
        name
        for name in names
        if name not in registry or registry[name].__module__.startswith("fedtail.")
    ]


def _kind(name: str) -> tuple[bool, bool, str]:
    """Sort as ruff does: constants, classes, functions."""
    return not name.isupper(), name.islower(), name


def made(path: Path) -> str:
    """Return what a file should hold."""
    if path.suffix == ".py":
        return package()
    if path.suffix == ".json":
        return shown()
    text = path.read_text(encoding="utf-8")
    for name, lines in BLOCKS[path.relative_to(ROOT).as_posix()].items():
        begin, end = f"<!-- made by `make lists`: {name} -->\n", "<!-- end -->"
        before, rest = text.split(begin, 1)
        block = "".join(f"{line}\n" for line in lines())
        text = f"{before}{begin}\n{block}\n{end}{rest.split(end, 1)[1]}"
    return text


FILES = [
    ROOT / "fedtail" / "methods" / "__init__.py",
    ROOT / "fedtail" / "cli" / "lists.json",
    *(ROOT / page for page in BLOCKS),
]

if __name__ == "__main__":
    for file in FILES:
        file.write_text(made(file), encoding="utf-8")
