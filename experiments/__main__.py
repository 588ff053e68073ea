"""`python -m experiments NAMES…` in a checkout is `neuronfair reproduce NAMES…`."""

import sys

from neuronfair.cli import main

if __name__ == "__main__":
    sys.argv[1:1] = ["reproduce"]
    main()
