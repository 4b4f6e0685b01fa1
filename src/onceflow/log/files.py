"""A bounded number of open files for sealed segments, so that old data costs no descriptors."""

from __future__ import annotations

from collections import OrderedDict

from onceflow.runtime.disk import Access, Disk, File


class OpenFiles:
    """Opens for reading; forgets the file that was not used for longest.

    A forgotten file that a reader still holds stays open until the reader lets go of it.
    """

    def __init__(self, disk: Disk, most: int = 256) -> None:
        self._disk = disk
        self._most = most
        self._open: OrderedDict[str, File] = OrderedDict()

    def get(self, path: str) -> File:
        file = self._open.get(path)
        if file is None:
            file = self._open[path] = self._disk.open(path, Access.WRITE)
            if len(self._open) > self._most:
                self._open.popitem(last=False)
        else:
            self._open.move_to_end(path)
        return file

    def forget(self, path: str) -> None:
        self._open.pop(path, None)
