"""The functions of a pipeline, named as `"module:function"`.

A module is loaded once there is a session, not before: at its top it may have columns and functions
of Spark (`F.col`, `@udf`), which cannot be made without one. What can be seen without running it is
checked earlier: whether the file exists and is Python, whether it has the function, and which
parameters that takes.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

from onceflow.settings import NotAllowed

_FORM = '"module:function"'


@dataclass(frozen=True, slots=True)
class NamedFunction:
    """A function that is not loaded yet."""

    module: str
    name: str
    base: Path
    """Where modules are looked for first."""

    @property
    def path(self) -> Path:
        return self.base.joinpath(*self.module.split(".")).with_suffix(".py")

    def load(self) -> Callable[..., Any]:
        """Runs the module. Raises `NotAllowed`."""
        module = self._module()
        function = getattr(module, self.name, None)
        if not callable(function):
            raise NotAllowed(f"a function of {module.__file__}, which has no {self.name}")
        return function  # type: ignore[no-any-return]  # whatever it is, it can be called

    def _module(self) -> ModuleType:
        """The one that lies beside the pipeline, else any that can be imported."""
        try:
            if self.path.exists():
                return _load(self.module, self.path, self.base)
            return importlib.import_module(self.module)
        except Exception as error:
            raise self._unusable(error) from error

    def _unusable(self, error: Exception) -> NotAllowed:
        path = self.path
        where = f"{path} cannot be loaded" if path.exists() else f"there is no {path}"
        return NotAllowed(f"{_FORM}; {where}: {type(error).__name__}: {error}")

    def signature(self) -> inspect.Signature | None:
        """What it takes, out of the text of a module that lies beside the pipeline; None where that
        does not tell. Raises `NotAllowed` for what cannot be loaded whatever is done."""
        if not self.path.exists():
            self._require_somewhere()
            return None
        try:
            tree = ast.parse(self.path.read_bytes(), self.path)
        except (SyntaxError, ValueError, OSError) as error:
            raise self._unusable(error) from error
        bound = dict(_bindings(tree.body))
        if self.name not in bound and "*" not in bound and "__getattr__" not in bound:
            raise NotAllowed(f"a function of {self.path}, which has no {self.name}")
        found = bound.get(self.name)
        if not isinstance(found, ast.FunctionDef) or found.decorator_list:
            return None
        return _signature(found.args)

    def _require_somewhere(self) -> None:
        """Only the outermost package is looked for: to find what is inside would run it."""
        first = self.module.partition(".")[0]
        try:
            is_there = (
                (self.base / first).is_dir()
                or first in sys.modules
                or importlib.util.find_spec(first) is not None
            )
        except (ImportError, ValueError):
            is_there = False
        if not is_there:
            raise self._unusable(ModuleNotFoundError(f"No module named {first!r}"))


Function: TypeAlias = Callable[..., Any] | NamedFunction


def function_in(base: Path) -> Callable[[object], Function]:
    """A reader of functions, and of their names; modules in `base` come first."""

    def read(value: object) -> Function:
        if callable(value):
            return value
        parts = value.split(":") if isinstance(value, str) else []
        if len(parts) != 2 or not all(parts):
            raise NotAllowed(_FORM)
        named = NamedFunction(parts[0], parts[1], base)
        named.signature()
        return named

    return read


def call_problem(function: Function, names: Sequence[str] | None) -> str | None:
    """What is wrong with calling it with one table, or with several by their names."""
    try:
        if isinstance(function, NamedFunction):
            signature = function.signature()
        else:
            signature = inspect.signature(function)
    except (TypeError, ValueError):  # made of something else than Python
        signature = None
    if signature is None:
        return None
    try:
        if names is None:
            signature.bind(None)
        else:
            signature.bind(**dict.fromkeys(names))
    except TypeError as error:
        wanted = "(table)" if names is None else f"({', '.join(names)})"
        return f"the function must take {wanted}; it takes {signature}: {error}"
    return None


def _bindings(body: Sequence[ast.stmt]) -> Iterator[tuple[str, ast.AST]]:
    """The names that a module binds at its top, each with what binds it; `*` for an import that
    does not say which names."""
    for statement in body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield statement.name, statement
        elif isinstance(statement, ast.Import | ast.ImportFrom):
            for alias in statement.names:
                yield alias.asname or alias.name.partition(".")[0], statement
        else:
            # Assignments, also inside of `if`, `try`, `with` and `for`; and what is defined there.
            for node in ast.walk(statement):
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                    yield node.id, node
                elif isinstance(node, ast.stmt) and node is not statement:
                    yield from _bindings([node])


def _signature(written: ast.arguments) -> inspect.Signature:
    """Defaults and annotations are not evaluated: they may need what is not there yet."""
    given = [*written.posonlyargs, *written.args]
    first_default = len(given) - len(written.defaults)
    found = [
        inspect.Parameter(
            each.arg,
            inspect.Parameter.POSITIONAL_ONLY
            if at < len(written.posonlyargs)
            else inspect.Parameter.POSITIONAL_OR_KEYWORD,
            default=inspect.Parameter.empty if at < first_default else None,
        )
        for at, each in enumerate(given)
    ]
    if written.vararg is not None:
        found.append(inspect.Parameter(written.vararg.arg, inspect.Parameter.VAR_POSITIONAL))
    found += [
        inspect.Parameter(
            each.arg,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if default is None else None,
        )
        for each, default in zip(written.kwonlyargs, written.kw_defaults, strict=True)
    ]
    if written.kwarg is not None:
        found.append(inspect.Parameter(written.kwarg.arg, inspect.Parameter.VAR_KEYWORD))
    return inspect.Signature(found)


def _load(name: str, path: Path, base: Path) -> ModuleType:
    """Not by its name alone: another pipeline of this process may have a module of that name."""
    if str(base) not in sys.path:
        sys.path.insert(0, str(base))
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
