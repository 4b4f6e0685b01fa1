"""A bounded number of open files for sealed segments, so that old data costs little memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from onceflow.runtime.disk import Access, Disk, File


class OpenFiles:
    """Keeps the files that were used last; what goes is told, to give back what belongs to it.

    A file that goes while a reader still holds it stays open until the reader lets go of it.
    """

    def __init__(self, disk: Disk, most: int = 64) -> None:
        self._disk = disk
        self._most = most
        self._open: OrderedDict[str, tuple[File, Callable[[], None]]] = OrderedDict()

    def get(self, path: str, on_close: Callable[[], None]) -> File:
        found = self._open.get(path)
        if found is not None:
            self._open.move_to_end(path)
            return found[0]
        file = self._disk.open(path, Access.WRITE)
        self._open[path] = file, on_close
        if len(self._open) > self._most:
            _, (_, closed) = self._open.popitem(last=False)
            closed()
        return file

    def forget(self, path: str) -> None:
        self._open.pop(path, None)
