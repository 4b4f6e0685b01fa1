"""Short time slices for a thread that sleeps a lot and works a little: it runs as soon as it wakes.

Linux gives each thread a slice, some milliseconds long, and lets the running thread finish it
before one that has just woken up gets the core. A broker's loop wakes up for a request and needs a
tenth of a millisecond; beside clients that burn all cores it would wait for most of a slice each
time. Since Linux 6.12 a thread can ask for a shorter slice: it gets no larger share of the machine,
but smaller pieces of it sooner.
"""

from __future__ import annotations

import ctypes
import platform
from typing import Final

_GET, _SET = {"x86_64": (315, 314), "aarch64": (275, 274)}.get(platform.machine(), (None, None))
"""The kernel's numbers of `sched_getattr` and `sched_setattr`."""
_OTHER: Final = 0
"""The usual policy (SCHED_OTHER). A thread that the operator gave another one is left alone."""
_NOT_FOR_CHILDREN: Final = 1
"""`SCHED_FLAG_RESET_ON_FORK`: threads and processes that this one starts get the usual slice."""
_SLICE_NS: Final = 100_000
"""The shortest that the kernel takes."""


class _Attributes(ctypes.Structure):
    """The kernel's `struct sched_attr`, as of its first version."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("policy", ctypes.c_uint32),
        ("flags", ctypes.c_uint64),
        ("nice", ctypes.c_int32),
        ("priority", ctypes.c_uint32),
        ("runtime", ctypes.c_uint64),
        ("deadline", ctypes.c_uint64),
        ("period", ctypes.c_uint64),
    )


def take_short_slices() -> bool:
    """Asks for short slices for the calling thread alone. Returns whether the kernel accepted: an
    older kernel accepts and changes nothing; one without the call, or a sandbox, refuses."""
    if _GET is None:
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    attributes = _Attributes()
    size = ctypes.sizeof(attributes)
    if libc.syscall(_GET, 0, ctypes.byref(attributes), size, 0) != 0:
        return False
    if attributes.policy != _OTHER:
        return False
    attributes.size = size
    attributes.runtime = _SLICE_NS
    if attributes.nice >= 0:  # a better niceness would be taken from the children, too
        attributes.flags |= _NOT_FOR_CHILDREN
    return bool(libc.syscall(_SET, 0, ctypes.byref(attributes), 0) == 0)
