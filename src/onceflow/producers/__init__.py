"""Idempotent and transactional producers as one partition sees them: a fold over batch headers.

Pure: no clock, no disk. `table.ProducerTable` is the front door, `state` judges what a producer
wants to append, `replay` builds a table from the bytes of a log, `ids` hands out producer ids.
"""
