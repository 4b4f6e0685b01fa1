"""Spark reads and writes topics, exactly once: `spark.readStream.format("onceflow")` is the source
(`pyspark_onceflow` makes it known), `onceflow.spark.sink` writes a micro-batch as one transaction.

Importing this package imports no Spark.
"""
