# The library wraps every number, text and time in a class of its own, only to say how many bytes it
# may take. Its reader here gives plain ones, and its writer takes them.

from datetime import datetime, timedelta
from typing import TypeAlias

i8: TypeAlias = int
i16: TypeAlias = int
i32: TypeAlias = int
i64: TypeAlias = int
u8: TypeAlias = int
u16: TypeAlias = int
u32: TypeAlias = int
u64: TypeAlias = int
f64: TypeAlias = float
Records: TypeAlias = bytes
i32Timedelta: TypeAlias = timedelta  # noqa: N816
i64Timedelta: TypeAlias = timedelta  # noqa: N816
TZAware: TypeAlias = datetime
