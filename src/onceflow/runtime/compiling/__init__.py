"""Code that is compiled beside the program, which runs a slower form of it meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceflow.doors import door

if TYPE_CHECKING:
    from onceflow.runtime.compiling.cache import private_directory as private_directory
    from onceflow.runtime.compiling.compiling import (
        Cache as Cache,
        Code as Code,
        Compiling as Compiling,
        at_import as at_import,
    )
else:
    __getattr__ = door(
        __name__,
        {
            "cache": "private_directory",
            "compiling": "Cache Code Compiling at_import",
        },
    )
