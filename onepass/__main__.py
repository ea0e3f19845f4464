"""Run the command `onepass` as `python -m onepass`."""

import sys

from onepass.command.verbs import main

if __name__ == "__main__":
    sys.exit(main())
