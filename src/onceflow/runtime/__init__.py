"""The four doors to the world: Clock, Net, Disk and Rand, each real and simulated.

Everything above takes these as arguments and opens no other door. The simulated twins run on
one event loop with virtual time, so that a seed decides every delay, fault and interleaving
and the same seed gives the same run, callback by callback.
"""
