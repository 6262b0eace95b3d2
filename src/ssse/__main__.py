"""`python -m ssse` is `ssse`."""

from ssse.cli import main

main()
