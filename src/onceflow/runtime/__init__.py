"""The four doors to the world: Clock, Net, Disk and Rand.

Everything above takes these as arguments and opens no other door. Their simulated twins, in
`onceflow.testing`, run on one event loop with virtual time, so that a seed decides every delay,
fault and interleaving, and the same seed gives the same run, callback by callback.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceflow.doors import door

if TYPE_CHECKING:
    from onceflow.runtime.background import (
        Background as Background,
        Done as Done,
        Job as Job,
        JobLane as JobLane,
        Threads as Threads,
        outcome_of as outcome_of,
    )
    from onceflow.runtime.clock import (
        Clock as Clock,
        RealClock as RealClock,
        SteadyClock as SteadyClock,
        TimerHandle as TimerHandle,
    )
    from onceflow.runtime.compiling import (
        Cache as Cache,
        Code as Code,
        Compiling as Compiling,
        at_import as at_import,
        private_directory as private_directory,
    )
    from onceflow.runtime.descriptors import (
        NO_LIMIT as NO_LIMIT,
        descriptor_limit as descriptor_limit,
        raise_descriptor_limit as raise_descriptor_limit,
        take_standard_descriptors as take_standard_descriptors,
    )
    from onceflow.runtime.disk import (
        BLOCK_SIZE as BLOCK_SIZE,
        Access as Access,
        Bytes as Bytes,
        DirectoryEntry as DirectoryEntry,
        Disk as Disk,
        DurableWrite as DurableWrite,
        File as File,
        RealDisk as RealDisk,
    )
    from onceflow.runtime.imports import loading as loading, message_library as message_library
    from onceflow.runtime.logs import (
        JsonFormatter as JsonFormatter,
        TextFormatter as TextFormatter,
        log_to as log_to,
    )
    from onceflow.runtime.net import Listener as Listener, Net as Net, RealNet as RealNet
    from onceflow.runtime.outbox import (
        BUFFERS as BUFFERS,
        Outbox as Outbox,
        Part as Part,
        outbox_for as outbox_for,
    )
    from onceflow.runtime.rand import Rand as Rand, RealRand as RealRand
    from onceflow.runtime.scheduling import take_short_slices as take_short_slices
else:
    __getattr__ = door(
        __name__,
        {
            "background": "Background Done Job JobLane Threads outcome_of",
            "clock": "Clock RealClock SteadyClock TimerHandle",
            "compiling": "Cache Code Compiling at_import private_directory",
            "descriptors": "NO_LIMIT descriptor_limit raise_descriptor_limit "
            "take_standard_descriptors",
            "disk": "Access BLOCK_SIZE Bytes DirectoryEntry Disk DurableWrite File RealDisk",
            "imports": "loading message_library",
            "logs": "JsonFormatter TextFormatter log_to",
            "net": "Listener Net RealNet",
            "outbox": "BUFFERS Outbox Part outbox_for",
            "rand": "Rand RealRand",
            "scheduling": "take_short_slices",
        },
    )
