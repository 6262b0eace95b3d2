"""The command line: parses, calls, prints."""

import sys

from ssse.errors import MissingExtra
from ssse.system.extras import needed_for


def main() -> None:
    """`ssse`, also where nothing is there that it is made of."""
    try:
        with needed_for("The command line"):
            from ssse.cli.app import main as run
    except MissingExtra as error:
        print(f"Error: {error}", file=sys.stderr)
        sys.exit(2)
    run()
