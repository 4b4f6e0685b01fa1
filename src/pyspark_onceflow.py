"""Makes `format("onceflow")` known to Spark: it looks for modules whose names begin with `pyspark_`
and takes their `DefaultSource`. Nothing has to be registered, nothing has to be imported."""

from __future__ import annotations

from onceflow.spark.source.datasource import OnceflowSource


class DefaultSource(OnceflowSource):
    """The source, by the name that Spark looks for."""
