"""Small changes to source files, each of which a test should notice.

A mutant is one function with one expression exchanged, one argument left out or one statement
deleted. What no run depends on is left as it is: docstrings, annotations, error messages, class
bodies (fields, defaults, descriptions) and how a tensor gets from one device to another.
"""

from __future__ import annotations

import ast
import copy
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType

ROOT = Path(__file__).parents[1]
FOLDERS = ("methods", "losses", "training")

SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt},
    **{ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is},
    **{ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And},
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult},
    **{ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult, ast.Pow: ast.Mult, ast.MatMult: ast.Mult},
    **{ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd},
}
NAMES = {
    **{"sum": "mean", "mean": "sum", "max": "min", "min": "max", "all": "any", "any": "all"},
    **{"randn": "rand", "rand": "randn", "zeros": "ones", "ones": "zeros", "train": "eval"},
    **{"zeros_like": "ones_like", "ones_like": "zeros_like", "argmax": "argmin", "eval": "train"},
    **{"ceil": "floor", "floor": "ceil", "log_softmax": "softmax", "softmax": "log_softmax"},
}
# Where a tensor is and how it is typed: the same numbers on the CPU, on which all tests run.
PLACES = {"to", "cpu", "detach", "device", "dtype", "strict", "stacklevel", "memory_format"}
# The same whichever argument comes first.
SYMMETRIC = {"max", "min", "maximum", "minimum", "cosine_similarity", "vecdot"}
SILENT = {"cast", "replace", "isinstance", "FedtailError", "Field", "TypeVar"}


@dataclass(frozen=True)
class Mutant:
    """One change.

    Attributes
    ----------
    file
        The source, from the package's folder.
    function
        The outermost function around the change, by its qualified name.
    key
        What identifies the change, whatever line it is on.
    tree, parent, field, index, new
        The module, and the place in it that `new` takes; None deletes a statement.
    """

    file: str
    function: str
    line: int
    key: str
    tree: ast.Module
    parent: ast.AST
    field: str
    index: int | None
    new: ast.AST | None

    def code(self) -> CodeType:
        """Return the function's code with the change."""
        with_change(self.parent, self.field, self.index, self.new)
        module = compile(ast.fix_missing_locations(self.tree), str(path_of(self.file)), "exec")
        return next(c for c in codes(module) if c.co_qualname == self.function)


def path_of(file: str) -> Path:
    return ROOT / "fedtail" / file


def sources() -> list[str]:
    """Return the files that are changed."""
    return [
        f"{folder}/{path.name}"
        for folder in FOLDERS
        for path in sorted((ROOT / "fedtail" / folder).glob("*.py"))
        if path.name != "__init__.py"
    ]


def mutants(file: str) -> list[Mutant]:
    """Return every change of a source file, in the order of its lines."""
    tree = ast.parse(path_of(file).read_text(encoding="utf-8"))
    seen: Counter[str] = Counter()
    found = []
    for name, function in functions(tree):
        keep_class_cell(function)
        for node, parent, field, index in places(function):
            for new in changes(node, parent, field):
                key = f"{file}::{name}: {described(node, parent, field, index, new)}"
                seen[key] += 1
                number = f" (no. {seen[key]})" if seen[key] > 1 else ""
                line = getattr(node, "lineno", function.lineno)
                place = (tree, parent, field, index, new)
                found.append(Mutant(file, name, line, key + number, *place))
    return found


def functions(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef]]:
    """Yield module functions and methods of classes; what is inside them belongs to them."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield node.name, node
        elif isinstance(node, ast.ClassDef):
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef):
                    yield f"{node.name}.{inner.name}", inner


def keep_class_cell(function: ast.FunctionDef) -> None:
    """Name `__class__` where `super()` did: a function keeps its cells when its code is changed."""
    if any(isinstance(n, ast.Name) and n.id == "super" for n in ast.walk(function)):
        function.body += ast.parse("if 0: __class__").body


Place = tuple[ast.AST, ast.AST, str, int | None]


def places(node: ast.AST) -> Iterator[Place]:
    """Yield the nodes below one, each with where it is; not those that no run depends on."""
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list", "type_comment"):
            continue
        if field == "args" and isinstance(node, ast.FunctionDef):
            continue  # defaults belong to the function, not to its code, which is exchanged
        for index, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if not isinstance(child, ast.AST) or silent(child):
                continue
            if isinstance(child, ast.keyword) and child.arg in PLACES:
                continue
            yield child, node, field, index
            yield from places(child)


def silent(node: ast.AST) -> bool:
    """Whether a node says something to a reader, or to the type checker, and nothing else."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return True
    if isinstance(node, ast.If) and isinstance(node.test, ast.Constant):
        return True
    return isinstance(node, (ast.Raise, ast.Assert, ast.JoinedStr, ast.Import, ast.ImportFrom))


def changes(node: ast.AST, parent: ast.AST, field: str) -> Iterator[ast.AST | None]:
    """Yield what may stand in a node's place; None is nothing, for statements and arguments."""
    if isinstance(node, ast.stmt):
        if deletable(node):
            yield None
        return
    if isinstance(parent, (ast.If, ast.IfExp, ast.comprehension)) and field in ("test", "ifs"):
        yield from (ast.Constant(True), ast.Constant(False))
        if not isinstance(node, ast.BoolOp) and not ordering(node):
            return  # the opposite is wrong where one of the two is
    if isinstance(node, ast.keyword):
        if node.arg is not None and called(parent) not in SILENT:
            yield None
    elif isinstance(node, ast.Constant):
        yield from constants(node)
    elif isinstance(node, ast.UnaryOp):
        yield node.operand
    elif isinstance(node, (ast.Compare, ast.BinOp, ast.BoolOp)):
        yield from operators(node)
    elif isinstance(node, ast.Call):
        yield from calls(node)
    elif isinstance(node, (ast.Name, ast.Attribute)) and field == "func":
        yield from renamed(node)


def ordering(node: ast.AST) -> bool:
    """Whether a comparison has a boundary."""
    order = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
    return isinstance(node, ast.Compare) and isinstance(node.ops[0], order)


def deletable(node: ast.stmt) -> bool:
    """Whether a function still has all its names without a statement."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Call)
    if isinstance(node, ast.AugAssign):
        return True
    if isinstance(node, ast.Assign):
        # A plain name would be missing at once; an entry, an attribute or a second value is not.
        target = node.targets[0]
        inside = {n.id for n in ast.walk(node.value) if isinstance(n, ast.Name)}
        return not isinstance(target, (ast.Name, ast.Tuple)) or (
            isinstance(target, ast.Name) and target.id in inside
        )
    return False


def constants(node: ast.Constant) -> Iterator[ast.AST]:
    if isinstance(node.value, bool):
        yield ast.Constant(not node.value)
    elif isinstance(node.value, int):
        yield ast.Constant(node.value + 1)
    elif isinstance(node.value, float):
        yield ast.Constant(node.value * 2 if node.value else 1.0)


def operators(node: ast.Compare | ast.BinOp | ast.BoolOp) -> Iterator[ast.AST]:
    new = copy.deepcopy(node)
    if isinstance(new, ast.Compare):
        new.ops = [SWAPS[type(op)]() for op in new.ops]  # type: ignore[misc]
    elif type(new.op) in SWAPS:
        new.op = SWAPS[type(new.op)]()  # type: ignore[assignment]
    yield new


def calls(node: ast.Call) -> Iterator[ast.AST]:
    """Yield the call without its last argument, with two exchanged, and what it was called on."""
    name = called(node)
    if name in SILENT or name in PLACES:
        return
    if len(node.args) > 1 and not any(isinstance(a, ast.Starred) for a in node.args):
        fewer, swapped = copy.deepcopy(node), copy.deepcopy(node)
        fewer.args.pop()
        yield fewer
        if name not in SYMMETRIC and ast.dump(node.args[-2]) != ast.dump(node.args[-1]):
            swapped.args[-2:] = reversed(swapped.args[-2:])
            yield swapped
    if isinstance(node.func, ast.Attribute) and not node.args:
        yield node.func.value


def renamed(node: ast.Name | ast.Attribute) -> Iterator[ast.AST]:
    name = node.id if isinstance(node, ast.Name) else node.attr
    if name not in NAMES or (name == "sum" and isinstance(node, ast.Name)):
        return  # the built-in sum has no mean beside it
    new = copy.deepcopy(node)
    if isinstance(new, ast.Name):
        new.id = NAMES[name]
    else:
        new.attr = NAMES[name]
    yield new


def called(node: ast.AST) -> str:
    """Return the name of what is called, without where it is from."""
    if not isinstance(node, ast.Call):
        return ""
    func = node.func.value if isinstance(node.func, ast.Subscript) else node.func
    return func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")


def with_change(parent: ast.AST, field: str, index: int | None, new: ast.AST | None) -> None:
    if index is None:
        setattr(parent, field, new)
        return
    children: list[ast.AST] = getattr(parent, field)
    children[index : index + 1] = [new] if new is not None else []
    if not children and field == "body":
        children.append(ast.Pass())


def described(
    node: ast.AST, parent: ast.AST, field: str, index: int | None, new: ast.AST | None
) -> str:
    """Return the smallest piece of source that shows the change, before and after."""
    if isinstance(node, ast.stmt) or not isinstance(parent, (ast.expr, ast.keyword)):
        return f"{text(node)} -> {text(new)}"
    other = copy.copy(parent)
    if index is not None:
        setattr(other, field, list(getattr(parent, field)))
    with_change(other, field, index, new)
    return f"{text(parent)} -> {text(other)}"


def text(node: ast.AST | None) -> str:
    if node is None:
        return "(deleted)"
    found = " ".join(ast.unparse(node).split())
    return found if len(found) <= 100 else f"{found[:60]} ... {found[-35:]}"


def codes(code: CodeType) -> Iterator[CodeType]:
    """Yield a code object and those inside."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes(constant)
