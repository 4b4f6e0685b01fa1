"""Messages that Apache Kafka 4.4 added, and that the message library does not have yet.

Written as the library writes its own, so that its writer and our reader take them for such: a file
for each API and version, with the classes of its request and its response. One that has not changed
is the library's of the version before.
"""
