"""A simulated world for tests: an event loop with virtual time, a network and a disk, all out of
one seed.
"""
