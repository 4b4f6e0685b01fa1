"""Keeps compiled kernels on the disk, because compiling takes seconds.

Nothing depends on this cache: where nothing can be written, the disk is full or a file is damaged,
a kernel is compiled again, and runs as plain Python meanwhile (`interpreted`). numba alone would
raise then, in the middle of a request.
"""

from __future__ import annotations

import hashlib
import inspect
import logging
import sys
from contextlib import suppress
from functools import cache
from typing import Any

from numba.core import config
from numba.core.caching import (
    CompileResultCacheImpl,
    FunctionCache,
    NullCache,
    UserWideCacheLocator,
)

from onceflow.runtime import Cache, private_directory

_COMPILED_IN = ("onceflow.records.raw_memory", "onceflow.records.layout")
"""Every kernel may contain code of these modules: a change there, even of a comment, compiles all
kernels anew."""
_HINT = "set NUMBA_CACHE_DIR to a directory that this user can write"

_log = logging.getLogger(__name__)
_said: set[str] = set()

# numba's functions have no types.
_config: Any = config
_super_init: Any = UserWideCacheLocator.__init__
_super_subpath: Any = UserWideCacheLocator.get_suitable_cache_subpath
_super_from_function: Any = UserWideCacheLocator.from_function
_super_files: Any = CompileResultCacheImpl.__init__
_super_key: Any = FunctionCache._index_key
_super_load: Any = FunctionCache.load_overload
_super_save: Any = FunctionCache.save_overload
_super_flush: Any = FunctionCache.flush


class _PrivateLocator(UserWideCacheLocator):
    """The directory for compiled code when none of numba's own is writable."""

    def __init__(self, function: Any, path: str) -> None:
        _super_init(self, function, path)
        self._cache_path = f"{private_directory()}/{_super_subpath(path)}"

    @classmethod
    def from_function(cls, function: Any, path: str) -> Any:
        directory = private_directory()
        found = None if directory is None else _super_from_function.__func__(cls, function, path)
        if found is not None:
            _say_once(
                logging.INFO,
                "neither the sources nor the home directory can be written: compiled code is kept "
                "in %s; to have it elsewhere, %s",
                directory,
            )
        return found


class _CacheFiles(CompileResultCacheImpl):
    def __init__(self, function: Any) -> None:
        self._locator_classes = [*CompileResultCacheImpl._locator_classes, _PrivateLocator]
        _super_files(self, function)


class _NotKept(Exception):
    pass


class _Cache(FunctionCache):
    """numba's cache of compiled code, which looks at the kernel's own file only: code that was
    compiled with other helpers or another layout must not be taken for this one's."""

    _impl_class = _CacheFiles
    only_kept = False
    """Raise `_NotKept` instead of compiling a kernel that the cache does not have."""

    def _index_key(self, signature: Any, codegen: Any) -> Any:
        key: tuple[object, ...] = _super_key(self, signature, codegen)
        return (*key, _compiled_in())

    def load_overload(self, signature: Any, context: Any) -> Any:
        found = self._found(signature, context)
        if found is None and self.only_kept:
            raise _NotKept
        return found

    def _found(self, signature: Any, context: Any) -> Any:
        try:
            return _super_load(self, signature, context)
        except Exception as error:
            _say_once(
                logging.WARNING,
                "compiled code cannot be read and is compiled again: %r; if that happens again, %s",
                error,
            )
            with suppress(Exception):
                _super_flush(self)  # or its index would be found damaged for ever
            return None

    def save_overload(self, signature: Any, compiled: Any) -> None:
        try:
            _super_save(self, signature, compiled)
        except Exception as error:
            _say_once(logging.WARNING, "compiled code cannot be kept: %r; %s", error)


_new_cache: Any = _Cache


def cache_of(function: Any) -> Any:
    """A numba cache for a kernel; one that keeps nothing where there is no place for it."""
    try:
        return _new_cache(function)
    except Exception as error:  # no directory, or no sources from which to make the cache's key
        _say_once(
            logging.WARNING,
            "code is compiled anew at every start, which takes seconds: %s; %s",
            error,
        )
        return NullCache()


def load_kept(dispatcher: Any, signature: str) -> bool:
    """Loads the kernel from the cache, if it is there; returns whether it was."""
    kept = dispatcher._cache
    if not isinstance(kept, _Cache):
        return False
    kept.only_kept = True
    try:
        dispatcher.compile(signature)
    except _NotKept:
        return False
    finally:
        kept.only_kept = False
    return True


def find_cache() -> Cache:
    """The cache through which processes share compiled kernels."""
    environment = {"NUMBA_CACHE_DIR": _config.CACHE_DIR} if _config.CACHE_DIR else {}
    return Cache(cache_of(find_cache).cache_path, environment)


@cache
def _compiled_in() -> str:
    sources = (inspect.getsource(sys.modules[name]) for name in _COMPILED_IN)
    return hashlib.sha256("".join(sources).encode()).hexdigest()


def _say_once(level: int, message: str, detail: object) -> None:
    """Not again for each kernel."""
    if message not in _said:
        _said.add(message)
        _log.log(level, message, detail, _HINT)
