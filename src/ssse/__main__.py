"""`python -m ssse` is `ssse`."""

import sys

# Python puts the folder in which it is started before the installed packages: a file there that is called as one of
# them would be run by whatever imports it, now or later.
if not sys.flags.safe_path:
    del sys.path[0]

from ssse.cli import main

main()
