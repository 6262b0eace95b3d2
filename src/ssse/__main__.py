"""`python -m ssse` is `ssse`."""

from ssse.cli.app import main

main()
