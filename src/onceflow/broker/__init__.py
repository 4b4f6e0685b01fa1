"""Requests in, answers out: the shell around the state, one owner, one event loop."""
