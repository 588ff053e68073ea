"""Run the command line as `python -m neuronfair.cli`."""

from neuronfair.cli import main

main()
