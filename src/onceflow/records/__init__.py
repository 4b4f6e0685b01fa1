"""Record batches as Kafka stores them (magic 2): headers, checksums, codecs and Arrow columns.

Nothing here does I/O or knows the time. numba is imported only by the functions that need it.
"""
