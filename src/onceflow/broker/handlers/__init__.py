"""One file for each API: its versions, its behaviour, its omissions."""
