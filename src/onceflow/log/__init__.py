"""Partition logs that never lose an acknowledged byte.

`store.LogStore` is the front door. docs/LOG.md tells how it keeps its promise.
"""
