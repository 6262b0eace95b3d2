"""`ssse log`: the ledger, entry by entry; also while another command is at work. Reads only, without torch."""

from __future__ import annotations

from ssse.errors import InvalidSetting
from ssse.system.environment import now
from ssse.workspace.record.decision import decisions
from ssse.workspace.record.folder import Folder
from ssse.workspace.record.holdings import SETTLEMENTS, read_holdings, with_settlements
from ssse.workspace.record.story import Story
from ssse.workspace.results import Log


def read_log(folder: Folder, request: str | None = None) -> Log:
    """All entries, or what belongs to one request, its confirmation or reversal among it.

    Whether it may be closed is decided from all of them: measurements, repairs, and what others erased.
    """
    with folder.read() as ledger:
        entries = everything = list(ledger.entries())
        if request is not None:  # an id that could never have been given is not even looked for
            entries = ledger.of_request(request) if request.isprintable() else []
            entries = with_settlements(entries, (one for kind in SETTLEMENTS for one in ledger.newest(kind)))
        pending, last, held = ledger.pending(), ledger.last(), read_holdings(ledger).requests
    if request is not None and not entries:
        raise InvalidSetting(f"There is no request '{request}' in the ledger.")
    judged = [one for one in decisions(Story(everything), now()) if request in (None, one.request)]
    return Log(entries, last.hash if last else "", pending, held, judged)
