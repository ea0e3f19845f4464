"""`python -m onepass`, the command `onepass`."""

import sys

from onepass.command import main

if __name__ == "__main__":
    sys.exit(main())
