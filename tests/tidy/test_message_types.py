"""What mypy believes of messages is so: the types of their fields, and their versions."""

from __future__ import annotations

import ast
import re
import runpy
from collections.abc import Iterable, Iterator
from enum import IntEnum
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, UnionType
from typing import Any, Final, Union, get_args, get_origin

import pytest
from kio.static.constants import EntityType

from onceflow.broker.router import SERVED
from onceflow.client.codec.versions import SPOKEN
from onceflow.wire.api import ApiKey
from onceflow.wire.codec import message_class
from onceflow.wire.error_codes import ErrorCode

ROOT: Final = Path(__file__).resolve().parents[2]
STUBS: Final = ROOT / "typings"
WITH_OWN_FORM: Final = {ApiKey.PRODUCE, ApiKey.FETCH}
# Whatever talks to a broker and is not written by hand.
CLIENT: Final = (
    *(ROOT / "src/onceflow/client/admin").glob("*.py"),
    ROOT / "src/onceflow/client/group/requests.py",
    ROOT / "src/onceflow/client/offsets.py",
    ROOT / "src/onceflow/client/producer/sender.py",
)


# --- the stubs -----------------------------------------------------------------------------------


def stub_of(module: str) -> dict[str, Any]:
    """What mypy takes the names of a module of the library for."""
    return runpy.run_path(str(STUBS / f"{module.replace('.', '/')}.pyi"))


def used_by_messages(module: str) -> set[str]:
    found = find_spec("kio.schema")
    assert found is not None
    assert found.submodule_search_locations is not None
    folder = Path(found.submodule_search_locations[0])
    asked = re.compile(rf"^from {re.escape(module)} import (\w+)$", re.MULTILINE)
    sources = (path.read_text() for path in folder.glob("*/v*/*.py"))
    return {name for source in sources for name in asked.findall(source)}


@pytest.mark.parametrize("module", ["kio.static.primitive", "kio.schema.types"])
def test_stubs_have_every_kind_of_value_as_what_it_is(module: str) -> None:
    library, stub = import_module(module), stub_of(module)
    names = used_by_messages(module)
    assert names
    for name in names:  # one that is missing would be Any, without a word
        assert issubclass(getattr(library, name), stub[name]), name


def test_our_error_codes_stand_for_those_of_the_library() -> None:
    theirs: type[IntEnum] = import_module("kio.schema.errors").ErrorCode
    assert stub_of("kio.schema.errors")["ErrorCode"] is ErrorCode
    assert {each.name.upper(): each.value for each in theirs}.items() <= {
        each.name: each.value for each in ErrorCode
    }.items()


# --- the versions --------------------------------------------------------------------------------


def handler_of(key: ApiKey) -> ModuleType:
    return import_module(f"onceflow.broker.handlers.{key.schema}")


def messages_in(module: ModuleType, annotation: str) -> set[type]:
    """The messages that an annotation speaks of."""
    assert module.__file__ is not None
    names = vars(module) | dict(imported(Path(module.__file__)))
    return set(_messages(eval(annotation, names)))


def _messages(kind: Any) -> Iterator[type]:
    if get_origin(kind) in (UnionType, Union):
        for each in get_args(kind):
            yield from _messages(each)
    elif getattr(kind, "__type__", None) in (EntityType.request, EntityType.response):
        yield kind


def imported(path: Path) -> Iterator[tuple[str, Any]]:
    """Messages of the library, those included that are imported for mypy only."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("kio.schema"):
            for alias in node.names:
                library = import_module(node.module or "")
                yield alias.asname or alias.name, getattr(library, alias.name, library)


@pytest.mark.parametrize("key", SERVED.keys() - WITH_OWN_FORM, ids=lambda key: key.name)
def test_a_handler_says_which_messages_the_router_gives_it(key: ApiKey) -> None:
    module = handler_of(key)
    until = getattr(module, "OLD_SHAPE_UNTIL", None)
    upgrade, downgrade = getattr(module, "upgrade", None), getattr(module, "downgrade", None)
    given = {message_class(key, SERVED[key].highest, "request")}
    if until is not None and upgrade is None:
        given.add(message_class(key, until, "request"))
    said = module.handle.__annotations__
    assert messages_in(module, said["request"]) == given
    for answer in messages_in(module, said["return"]):
        assert answer is message_class(key, version_of(answer), "response")
    if upgrade is not None:
        older = messages_in(module, upgrade.__annotations__["request"])
        assert older == {message_class(key, until or 0, "request")}
    if downgrade is not None:
        older = messages_in(module, downgrade.__annotations__["return"])
        assert older == {message_class(key, until or 0, "response")}


def version_of(message: Any) -> int:
    version: int = message.__version__
    return version


def asked_for(path: Path) -> Iterator[tuple[ApiKey, str]]:
    """Each answer that is awaited, and as what it is taken."""
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.AnnAssign(ast.Name(), ast.Name(said), ast.Await(ast.Call() as call)):
                if (key := asked_in(call)) is not None:
                    yield key, said


def asked_in(call: ast.Call) -> ApiKey | None:
    match call:
        case ast.Call(ast.Attribute(attr="request"), [ast.Attribute(ast.Name("ApiKey"), key), _]):
            return ApiKey[key]
    return None


def calls_in(path: Path) -> Iterable[ast.Call]:
    return (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))


@pytest.mark.parametrize("path", CLIENT, ids=lambda path: path.stem)
def test_the_client_takes_each_answer_as_of_the_version_in_which_it_comes(path: Path) -> None:
    messages = dict(imported(path))
    taken = list(asked_for(path))
    for key, said in taken:
        assert messages[said] is message_class(key, SPOKEN[key].newest, "response"), said
    assert len(taken) == sum(asked_in(call) is not None for call in calls_in(path))
