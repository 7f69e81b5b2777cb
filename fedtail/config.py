"""Immutable, validated descriptions, and the registries that find them by name.

Every part of an experiment (a method, a loss, a data source, a partition, ...) is a `Component`:
a frozen set of fields that is checked when it is made, written as ``name`` plus its fields, and
found again by that name. Defaults and help texts live in the fields and nowhere else.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any, ClassVar, Generic, Self, TypeVar, cast

from pydantic import (
    BaseModel,
    ConfigDict,
    ModelWrapValidatorHandler,
    ValidationError,
    model_validator,
)

from fedtail.errors import FedtailError, sentence, unknown_name
from fedtail.plugins import find_installed

logger = logging.getLogger("fedtail")

T = TypeVar("T")
C = TypeVar("C", bound="Component")


class Registry(Generic[T]):
    """Classes by name, for one kind of thing."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._classes: dict[str, type[T]] = {}

    def add(self, name: str, cls: type[T]) -> None:
        """Enter a class; two classes may not share a name."""
        if name in self._classes:
            raise FedtailError(f"{self.kind} '{name}' is registered twice")
        self._classes[name] = cls

    def __getitem__(self, name: str) -> type[T]:
        if name not in self._classes:
            # An installed package may have it. They are asked last: importing them takes time.
            failed = find_installed(name, self._classes)
            if name not in self._classes:
                error = unknown_name(self.kind, name, self._classes)
                raise FedtailError("; ".join([str(error), *failed]))
        return self._classes[name]

    def __contains__(self, name: object) -> bool:
        return name in self._classes

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._classes))


class Config(BaseModel):
    """A frozen set of fields; an unknown key or a value out of range is refused by name.

    Whoever makes one gets a `FedtailError`. Inside, pydantic's own errors travel: they carry the
    path, and only the outermost call knows the whole of it.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", arbitrary_types_allowed=True, allow_inf_nan=False
    )

    keeps: ClassVar[str] = ""
    """Where that is kept which does not belong on an object of the class, in a clause."""

    def __init__(self, /, **fields: Any) -> None:
        with _one_sentence():
            super().__init__(**fields)

    # Without this mark pydantic calls `__init__` for what stands inside, and the path is lost.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    @classmethod
    def model_validate(cls, obj: Any, **options: Any) -> Self:
        """Return what plain data describes, or say in one sentence what is wrong with it."""
        with _one_sentence():
            return super().model_validate(obj, **options)

    @classmethod
    def inside(cls, obj: Any) -> Self:
        """Do as `model_validate` does, but raise pydantic's error, which an outer path fits."""
        return cast(Self, cls.__pydantic_validator__.validate_python(obj))

    def __setattr__(self, name: str, value: Any) -> None:
        try:
            super().__setattr__(name, value)
        except ValidationError:
            raise self._frozen(name) from None

    def __delattr__(self, name: str) -> None:
        try:
            super().__delattr__(name)
        except ValidationError:
            raise self._frozen(name) from None

    def _frozen(self, name: str) -> FedtailError:
        kind = type(self).__name__
        if name not in type(self).model_fields:
            return FedtailError(f"{kind} has no field '{name}', and is frozen{self.keeps}")
        return FedtailError(f"'{name}' is frozen: make another {kind} with .but({name}=...)")

    @model_validator(mode="wrap")
    @classmethod
    def _check(cls, value: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        return handler(cls._completed(value))

    @classmethod
    def _completed(cls, value: Any) -> Any:
        """Refuse unknown keys; a component's table without a name changes the default one."""
        if not isinstance(value, Mapping):
            return value
        completed = dict(value)
        for key, item in value.items():
            if key not in cls.model_fields:
                raise unknown_name("key", str(key), cls.model_fields)
            default = cls.model_fields[key].default
            if isinstance(default, Component) and isinstance(item, Mapping) and "name" not in item:
                completed[key] = {"name": default.name, **default._values(), **item}
        return completed

    def describe(self) -> dict[str, Any]:
        """Return the fields as plain data (what TOML and JSON hold); `None` is left out."""
        return {key: _plain(value) for key, value in self._values().items() if value is not None}

    def but(self, **changes: Any) -> Self:
        """Return a copy with some fields changed, checked again; what was not given stays so."""
        return type(self)(**{**self.given(), **changes})

    def given(self) -> dict[str, Any]:
        """Return the fields that were given, as a table whose values stay objects."""
        return {field: getattr(self, field) for field in self.model_fields_set}

    def _values(self) -> dict[str, Any]:
        return {field: getattr(self, field) for field in type(self).model_fields}


class Component(Config):
    """A swappable part, known by the name it is registered under.

    The root of each family (`LocalLoss`, `Source`, ...) owns a registry. Where a field has the
    type of a root, a name or a table with ``name`` stands for the registered class, and
    ``name:PATH`` for one with its field ``path``.
    """

    registry: ClassVar[Registry[Any]]
    name: ClassVar[str] = ""

    @classmethod
    def register(cls, name: str) -> Callable[[type[C]], type[C]]:
        """Enter the decorated class in this family's registry."""

        def enter(component: type[C]) -> type[C]:
            component.check_class()
            for remark in _near_misses(component):
                logger.warning("%s", remark)
            cls.registry.add(name, component)
            component.name = name
            return component

        return enter

    @classmethod
    def adopted(cls, value: Any) -> Any:
        """Return the component that something stands for which is none; by default itself."""
        return value

    @classmethod
    def check_class(cls) -> None:
        """Refuse a class that cannot be what its family promises, before it is registered."""

    @model_validator(mode="wrap")
    @classmethod
    def _check(cls, value: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        value = {"name": value} if isinstance(value, str) else cls.adopted(value)
        if isinstance(value, Mapping) and "name" in value:
            fields = dict(value)
            name, colon, path = str(fields.pop("name")).partition(":")
            fields |= {"path": path} if colon else {}  # "npz:FILE" is npz with that path
            found = cls.registry[name]
            return handler(cls._completed(fields)) if found is cls else found.inside(fields)
        # A parametrised generic (`Method[State]`) stands for its unparametrised class.
        origin = cls.__pydantic_generic_metadata__["origin"] or cls
        if isinstance(value, origin):
            return cast(Self, value)
        return handler(cls._completed(value))

    def describe(self) -> dict[str, Any]:
        """Return the name and the fields as plain data."""
        return {"name": self.name, **super().describe()}


def _near_misses(cls: type[Component]) -> Iterator[str]:
    """Yield a remark for each function that overrides nothing and is called almost like a hook."""
    parents = [parent for parent in cls.__mro__[1:] if issubclass(parent, Component)]
    hooks = {
        name
        for parent in parents
        for name in vars(parent)
        if not name.startswith(("_", "model_")) and callable(getattr(parent, name))
    }
    for name in vars(cls):
        alike = sorted(hook for hook in hooks if hook[0] == name[0])  # `tasks` is no `asks`
        close = get_close_matches(name, alike, n=1, cutoff=0.85)
        if close and name not in hooks and callable(getattr(cls, name)):
            yield f"'{name}' of class {cls.__name__} overrides nothing: is '{close[0]}' meant?"


@contextmanager
def _one_sentence() -> Iterator[None]:
    try:
        yield
    except ValidationError as error:
        raise FedtailError(sentence(error)) from None


def _plain(value: Any) -> Any:
    if isinstance(value, Config):
        return value.describe()
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list | frozenset):
        return [_plain(item) for item in value]
    return value


def fields_of(part: Config) -> dict[str, Any]:
    """Return a part of an experiment as a table whose values stay objects."""
    name = {"name": part.name} if isinstance(part, Component) else {}
    return {**name, **{field: getattr(part, field) for field in type(part).model_fields}}


def value_at(plain: Any, path: str) -> Any:
    """Return what stands at ``section.field`` of plain data or of a config; nothing, if none."""
    for key in path.split("."):
        plain = plain.get(key) if isinstance(plain, Mapping) else getattr(plain, key, None)
    return plain
