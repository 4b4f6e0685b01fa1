# Our reader gives our codes, and the library's writer takes them: they are numbers.

from onceflow.wire.error_codes import ErrorCode as ErrorCode
