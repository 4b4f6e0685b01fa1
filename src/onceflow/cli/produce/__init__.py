"""`onceflow produce`: lines as records, sent again until acknowledged, and counted once."""
