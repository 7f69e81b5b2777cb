"""Whether the tests see: changes the code in many small ways, and expects a test to fail each time.

    python tests/mutation.py                    every mutant of methods, losses and training
    python tests/mutation.py creff proxy        of some files
    python tests/mutation.py --sample 20        of each file at most 20, the same ones every time

Tests are collected once. A first run notes which test enters which function, and leaves this
process with all modules loaded. Every mutant then gets a fork of it, in which the function's code
is exchanged and the tests that matter are run, until one fails: those that enter the function, and
are in the test file of the same name or in that of a user. Mutants that none of these notices, and
that are not accepted, then meet the suites for everything. A mutant that nothing notices is a
survivor. `mutation_survivors.toml` holds those that may live, each with the reason; another one is
an error (exit code 1).
"""

from __future__ import annotations

import argparse
import ast
import gc
import hashlib
import io
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType, FunctionType
from typing import Any

import pytest
import torch
from mutants import FOLDERS, ROOT, Mutant, functions, mutants, sources

import fedtail

ACCEPTED = Path(__file__).with_name("mutation_survivors.toml")
SUITES = ("test_conformance", "test_loss_conformance", "test_loss_compositions", "test_sums")
# Beyond its tests' own time: a mutant that loops without end is noticed like a wrong number.
CPU_SECONDS, BYTES = 10, 8 << 30

PROGRESS = os.dup(2)

Function = tuple[str, str]  # file and qualified name


def accepted() -> dict[str, str]:
    """Return the reason of every mutant that may survive."""
    groups = tomllib.loads(ACCEPTED.read_text(encoding="utf-8"))["accepted"]
    return {key: group["reason"] for group in groups for key in group["mutants"]}


def chosen(names: list[str], sample: int | None) -> list[Mutant]:
    """Return the mutants of the named files in that order, each file's sample drawn by hash."""
    found = []
    named = [file for name in names for file in sources() if name in (file, Path(file).stem)]
    for file in dict.fromkeys(named) if names else sources():
        every = mutants(file)
        if sample is not None:
            every.sort(key=lambda m: hashlib.sha256(m.key.encode()).digest())
            every = sorted(every[:sample], key=lambda m: m.line)
        found += every
    return found


def live_functions() -> dict[Function, list[FunctionType]]:
    """Return the functions of the package as they are in memory, under their decorators."""
    found: dict[Function, list[FunctionType]] = defaultdict(list)
    for thing in gc.get_objects():
        if type(thing) is FunctionType:  # no isinstance: proxies among all objects would answer
            code = thing.__code__
            path = Path(code.co_filename)
            if path.parent.name in FOLDERS and path.parent.parent == ROOT / "fedtail":
                found[f"{path.parent.name}/{path.name}", code.co_qualname].append(thing)
    return found


def importers() -> dict[str, set[str]]:
    """Return for each file the stems of the files in our folders that import it."""
    found: dict[str, set[str]] = defaultdict(set)
    for user in sources():
        text = (ROOT / "fedtail" / user).read_text(encoding="utf-8")
        for folder, stem in re.findall(r"^from fedtail\.(\w+)\.(\w+) import", text, re.MULTILINE):
            found[f"{folder}/{stem}.py"].add(Path(user).stem)
    return found


@dataclass
class Coverage:
    """Which test enters which function.

    Attributes
    ----------
    entered
        The functions that the running test has entered.
    lines
        For each file, the function that a line is in.
    """

    entered: set[Function] = field(default_factory=set)
    lines: dict[str, dict[int, Function]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for file in sources():
            path = ROOT / "fedtail" / file
            inside = self.lines[str(path)] = {}
            for name, node in functions(ast.parse(path.read_text(encoding="utf-8"))):
                first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
                for line in range(first, (node.end_lineno or first) + 1):
                    inside[line] = file, name

    def tracer(self) -> Callable[[FrameType, str, Any], None]:
        """Return what Python calls whenever a function is entered."""
        here = self.entered = set()

        def enter(frame: FrameType, event: str, argument: Any) -> None:
            inside = self.lines.get(frame.f_code.co_filename)
            if inside and (function := inside.get(frame.f_code.co_firstlineno)):
                here.add(function)

        return enter


@dataclass
class Mutation:
    """The run, as a pytest plug-in.

    Attributes
    ----------
    found
        Whether each mutant survived.
    """

    todo: list[Mutant]
    jobs: int
    suites: bool
    log: Path | None
    found: dict[str, bool] = field(default_factory=dict)

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Take the place of the loop over the tests."""
        live, users, known = live_functions(), importers(), accepted()
        hand = [item for item in session.items if item.path.stem not in SUITES]
        suites = [item for item in session.items if item.path.stem in SUITES]
        todo = [m for m in self.todo if m.key not in self.found]
        if todo:
            self.stage(session, hand, live, users, todo)
        left = [m for m in self.todo if self.found[m.key] and m.key not in known]
        if self.suites and left:
            self.stage(session, suites, live, users, left)
        return True

    def stage(
        self,
        session: pytest.Session,
        items: list[pytest.Item],
        live: dict[Function, list[FunctionType]],
        users: dict[str, set[str]],
        todo: list[Mutant],
    ) -> None:
        """Try mutants against some of the tests."""
        files = {mutant.file for mutant in todo}
        items = [i for i in items if any(matters(i, f, users[f]) for f in files)]
        entered, seconds = learn(session, items)
        gc.collect()
        gc.freeze()  # a collection in a child would copy what it shares with this process
        began, waiting = time.monotonic(), dict[int, tuple[Mutant, float, str]]()
        for number, mutant in enumerate(todo):
            function = mutant.file, mutant.function
            # Which comes first changes the time and nothing else.
            those = sorted(
                (item for item in items if function in entered[item.nodeid]),
                key=lambda item: seconds[item.nodeid],
            )
            those = [i for i in those if matters(i, mutant.file, users[mutant.file])]
            if not live[function]:
                raise LookupError(f"{mutant.function} of {mutant.file} is not in memory")
            while len(waiting) >= self.jobs:
                self.wait(waiting)
            folder = tempfile.mkdtemp()
            limit = CPU_SECONDS + 3 * int(sum(seconds[item.nodeid] for item in those))
            child = os.fork()
            if not child:
                alone(partial(attempt, session, mutant, live[function], those), folder, limit)
            waiting[child] = mutant, time.monotonic(), folder
            if number % 50 == 0:
                say(f"{number} of {len(todo)}, {time.monotonic() - began:.0f} s")
        while waiting:
            self.wait(waiting)

    def pytest_runtest_setup(self) -> None:
        """Begin every test alike, whichever ran before it: models draw from the global stream."""
        torch.manual_seed(0)

    def wait(self, waiting: dict[int, tuple[Mutant, float, str]]) -> None:
        """Take the next result."""
        child, status = os.wait()
        mutant, began, folder = waiting.pop(child)
        code = os.waitstatus_to_exitcode(status)
        survived = self.found[mutant.key] = code == 0
        shutil.rmtree(folder, ignore_errors=True)
        if survived:
            say(f"survives: {mutant.file}:{mutant.line} {mutant.key.partition('::')[2]}")
        if self.log is not None:
            row = [mutant.key, survived, code, round(time.monotonic() - began, 1)]
            with self.log.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")


def say(line: str) -> None:
    """Write a line of progress past pytest's capture."""
    os.write(PROGRESS, f"{line}\n".encode())


def matters(item: pytest.Item, file: str, users: set[str]) -> bool:
    """Whether a test is meant for a file: by its name, its parameter, or as a user's."""
    stem, test = Path(file).stem, item.path.stem
    if test in SUITES:
        spec = getattr(item, "callspec", None)
        names = {str(value).replace("-", "_") for value in spec.params.values()} if spec else set()
        return stem in names or (file.startswith("losses/") and "loss" in test)
    own = test == f"test_{stem}" or test.startswith(f"test_{stem}_")
    return own or any(test.removeprefix("test_") == user for user in users)


def alone(work: Callable[[], int], folder: str, limit: int) -> None:
    """Do the work of a forked process, silently, and end it without a word to pytest."""
    code = 3
    try:
        os.environ["PYTEST_DEBUG_TEMPROOT"] = folder
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
        resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))
        code = work()
    finally:
        os._exit(code)


def attempt(
    session: pytest.Session, mutant: Mutant, live: list[FunctionType], items: list[pytest.Item]
) -> int:
    """Return 0 if no test notices the mutant."""
    session.config._tmp_path_factory._basetemp = None  # type: ignore[attr-defined]
    code = mutant.code()
    for function in live:
        function.__code__ = code
    for _ in outcomes(session, items):
        pass
    return int(session.testsfailed > 0)


def learn(
    session: pytest.Session, items: list[pytest.Item]
) -> tuple[dict[str, set[Function]], dict[str, float]]:
    """Run tests as they are, and return what each enters, and how long it takes."""
    coverage, entered, seconds = Coverage(), {}, {}
    start = began = time.process_time()
    for item in outcomes(session, items, coverage):
        if session.testsfailed:
            pytest.exit(f"a test fails without any change: {item.nodeid}", 2)
        now = time.process_time()
        entered[item.nodeid], seconds[item.nodeid] = coverage.entered, now - began
        began = now
    say(f"{len(items)} tests pass unchanged, {began - start:.0f} s")
    return entered, seconds


def outcomes(
    session: pytest.Session, items: list[pytest.Item], coverage: Coverage | None = None
) -> Iterator[pytest.Item]:
    """Run tests until one fails."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None:
        reporter._tw._file = io.StringIO()
    for item, following in zip(items, [*items[1:], None], strict=True):
        if coverage is not None:
            sys.settrace(coverage.tracer())
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        sys.settrace(None)
        yield item
        if session.testsfailed:
            return


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("names", nargs="*", help="files, such as creff or training/local.py")
    parser.add_argument("--sample", type=int, help="at most so many mutants of a file")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at once")
    parser.add_argument("--hand-derived", action="store_true", help="without the suites")
    parser.add_argument("--log", type=Path, help="a JSONL file; what was noticed stays so")
    parser.add_argument("--result", type=Path, help="a JSON file with the score of every file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if Path(fedtail.__file__).parent != ROOT / "fedtail":
        sys.exit(f"this is {ROOT}, but Python imports {fedtail.__file__}: set PYTHONPATH")
    todo = chosen(options.names, options.sample)
    run = Mutation(todo, options.jobs, not options.hand_derived, options.log)
    if options.log is not None and options.log.exists():
        rows = [json.loads(line) for line in options.log.read_text().splitlines()]
        run.found = {key: False for key, survived, *_ in rows if not survived}
    folders = [str(ROOT / "tests" / folder) for folder in FOLDERS]
    arguments = [
        "-x",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "--timeout",
        "120",
        "--tb",
        "native",
        *folders,
    ]
    ended = pytest.main([*arguments, "--rootdir", str(ROOT)], [run])
    if ended == 0 and options.result is not None:
        options.result.write_text(json.dumps(result(run), indent=1) + "\n", encoding="utf-8")
    return report(run) if ended == 0 else int(ended)


def result(run: Mutation) -> dict[str, Any]:
    """Return the score as a whole and of every file, with what it was measured on."""
    known, git = accepted(), ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]

    def score(those: list[Mutant]) -> dict[str, int]:
        living = [m.key for m in those if run.found[m.key]]
        reasons = sum(key in known for key in living)
        return {
            "mutants": len(those),
            "noticed": len(those) - len(living),
            "accepted": reasons,
            "unexplained": len(living) - reasons,
        }

    return {
        "command": " ".join(["python", "tests/mutation.py", *sys.argv[1:]]),
        "commit": subprocess.run(git, capture_output=True, text=True).stdout.strip(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "all": score(run.todo),
        "files": {
            file: score([m for m in run.todo if m.file == file])
            for file in dict.fromkeys(m.file for m in run.todo)
        },
    }


def report(run: Mutation) -> int:
    """Print the score and who survived; 1 if somebody did that may not."""
    known = accepted()
    result = {m.key: run.found[m.key] for m in run.todo}
    killed = sum(not survived for survived in result.values())
    print(f"{killed} of {len(result)} mutants are noticed ({killed / max(len(result), 1):.1%})")
    living = [key for key, survived in result.items() if survived]
    print(f"{sum(key in known for key in living)} survive with a reason in {ACCEPTED.name}")
    unknown = [key for key in living if key not in known]
    noticed = [key for key, survived in result.items() if not survived and key in known]
    for title, keys in (("no reason to survive", unknown), ("noticed by now: strike it", noticed)):
        for key in keys:
            print(f"{title}: {key}")
    return int(bool(unknown))


if __name__ == "__main__":
    sys.exit(main())
