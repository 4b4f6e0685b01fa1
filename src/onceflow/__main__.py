"""`python -m onceflow`: the same as the command `onceflow`."""

from onceflow.cli import main

main()
