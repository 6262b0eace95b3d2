"""`ssse log`: the ledger, entry by entry; also while another command is at work. Reads only, without torch."""

from __future__ import annotations

from ssse.errors import InvalidSetting
from ssse.workspace.record.folder import Folder
from ssse.workspace.record.holdings import SETTLEMENTS, read_holdings, with_settlements
from ssse.workspace.results import Log


def read_log(folder: Folder, request: str | None = None) -> Log:
    """All entries, or what belongs to one request, its confirmation or reversal among it."""
    with folder.read() as ledger:
        if request is None:
            entries = list(ledger.entries())
        else:  # an id that could never have been given is not even looked for
            entries = ledger.of_request(request) if request.isprintable() else []
            entries = with_settlements(entries, (one for kind in SETTLEMENTS for one in ledger.newest(kind)))
        pending, last, held = ledger.pending(), ledger.last(), read_holdings(ledger).requests
    if request is not None and not entries:
        raise InvalidSetting(f"There is no request '{request}' in the ledger.")
    return Log(entries, last.hash if last else "", pending, held)
