"""Errors as Spark tells them."""

from __future__ import annotations

GONE = """\
org.apache.spark.sql.streaming.StreamingQueryException: [STREAM_FAILED] Connection reset
\tat org.apache.spark.sql.execution.streaming.runtime.StreamExecution.run(StreamExecution.scala:1)
Caused by: java.net.SocketException: Connection reset
\tat java.base/sun.nio.ch.SocketChannelImpl.throwConnectionReset(SocketChannelImpl.java:394)
\tat java.base/java.io.DataInputStream.readInt(DataInputStream.java:381)
\tat org.apache.spark.sql.execution.python.streaming.PythonStreamingSourceRunner.latestOffset(x:1)
"""
