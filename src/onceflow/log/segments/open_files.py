"""The open files of all segments: as many as there are descriptors for, and no more.

A file that a reader borrows stays open while it is among the files used last, and as long as some
reader holds it; half of the descriptors are for these. A file that is appended to stays open too,
and is *dirty* from its first append until a checkpoint has synced it. A dirty file is never closed:
after a reopen, the sync may miss a write error. Once synced it is *clean* and may be closed to make
room for another; the file that has been clean longest goes first. So an idle log needs no
descriptor, and descriptors do not bound the number of logs.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from typing import Protocol
from weakref import WeakSet

from onceflow.errors import OutOfDescriptors
from onceflow.runtime import Access, Disk, File

MOST_FILES = 1 << 30
"""No limit."""
_MOST_BORROWED = 64
"""More would keep the indexes of old segments in memory."""


class Appended(Protocol):
    """A segment that may hold its file open, to be appended to."""

    @property
    def holds_file(self) -> bool: ...

    def let_go(self) -> File | None:
        """Gives the file up; the next append opens it again."""


class OpenFiles:
    """Belongs to one store. A file that is closed here while a reader still holds it stays open
    until the reader lets go of it."""

    def __init__(self, disk: Disk, most: int = MOST_FILES) -> None:
        self._disk = disk
        self._lent: WeakSet[File] = WeakSet()  # those that a reader still holds
        self._borrowed: OrderedDict[str, tuple[File, Callable[[], None]]] = OrderedDict()
        self._clean: OrderedDict[Appended, None] = OrderedDict()
        self._dirty: Counter[Appended] = Counter()  # twice, if again while it is being synced
        self._is_closed = False
        self.on_crowded: Callable[[], None] = lambda: None
        """Called when half of the files wait to be synced; the owner should take a checkpoint."""
        self.limit(most)

    def limit(self, most: int) -> None:
        """Sets the limit. Files beyond it are closed when the next one is opened."""
        self._most_lent = max(1, most // 2)
        self._most_borrowed = min(_MOST_BORROWED, self._most_lent)
        self._most_appended = max(2, most - self._most_lent)

    # --- to read ------------------------------------------------------------------------------

    def get(self, path: str, on_close: Callable[[], None]) -> File:
        """A file to read. `on_close` runs when it is closed, to free memory that belongs to it."""
        found = self._borrowed.get(path)
        if found is not None:
            self._borrowed.move_to_end(path)
            return found[0]
        if self._is_closed:  # a late reader: the file is open for as long as it is read
            return self._disk.open(path, Access.WRITE)
        while self._borrowed and (
            len(self._borrowed) >= self._most_borrowed or len(self._lent) >= self._most_lent
        ):
            self._borrowed.popitem(last=False)[1][1]()
        if len(self._lent) >= self._most_lent:
            raise OutOfDescriptors(
                f"{len(self._lent)} files are being read, and the limit of open files (ulimit -n) "
                "allows no more; try again when others have taken their answers, or raise it"
            )
        file = self._disk.open(path, Access.WRITE)
        self._lent.add(file)
        self._borrowed[path] = file, on_close
        return file

    def forget(self, path: str) -> None:
        self._borrowed.pop(path, None)

    # --- to append to -------------------------------------------------------------------------

    def open_to_append(self, segment: Appended, path: str, access: Access) -> File:
        """Opens a file for a segment to hold. Raises `OutOfDescriptors` when too many wait for a
        checkpoint."""
        self._make_room()
        file = self._disk.open(path, access)
        self._clean[segment] = None
        return file

    def _make_room(self) -> None:
        if self._has_room():
            return
        self.on_crowded()
        if not self._has_room():
            raise OutOfDescriptors(
                f"{len(self._dirty)} files of segments wait for a checkpoint, and the limit of open"
                " files (ulimit -n) allows no more; try again soon, or raise it"
            )

    def _has_room(self) -> bool:
        """Closes clean files as far as needed; never a dirty one, see the module."""
        while len(self._clean) + len(self._dirty) >= self._most_appended:
            if not self._clean:
                return False
            file = self._clean.popitem(last=False)[0].let_go()
            if file is not None:
                self._lent.add(file)  # a reader may hold it
        return True

    def dirtied(self, segment: Appended) -> None:
        """The segment was written to: its file stays open until it was `synced` as often."""
        self._clean.pop(segment, None)
        self._dirty[segment] += 1
        if 2 * len(self._dirty) > self._most_appended:
            self.on_crowded()

    def synced(self, segments: Iterable[Appended]) -> None:
        """A checkpoint has synced these."""
        for segment in segments:
            self._dirty[segment] -= 1
            if self._dirty[segment] <= 0:
                del self._dirty[segment]
                if segment.holds_file:
                    self._clean[segment] = None

    def dropped(self, segments: Iterable[Appended]) -> None:
        """Forgets segments that are gone for good: their files need no sync."""
        for segment in segments:
            self._clean.pop(segment, None)
            self._dirty.pop(segment, None)

    # --- the end ------------------------------------------------------------------------------

    def close(self) -> None:
        """Lets go of all files when the store closes: readers keep theirs only as long as they hold
        them. An application that has stopped its embedded broker gets the descriptors back at once.
        """
        self._is_closed = True
        for segment in (*self._clean, *self._dirty):
            segment.let_go()
        self._clean.clear()
        self._dirty.clear()
        self._borrowed.clear()
