"""`ssse key`, `prove`, `receipt`, `check`, `upgrade`: what makes the record evidence for somebody else."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ssse.cli.console import DAMAGED, Screen, counted, facts, failures_in_one_line, in_one_line
from ssse.cli.options import STOPPED, Json, Keys, NoWait, Quiet, Verbose, Where, listed, open_workspace
from ssse.errors import InvalidSetting

if TYPE_CHECKING:
    from ssse.workspace.proof.checkpoint import Checkpoint

HASH = re.compile("[0-9a-f]{64}")


def key(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Of the private key; the public one is FILE.pub.")],
    encrypt: Annotated[
        bool,
        typer.Option(
            "--encrypt", help="With a passphrase: SSSE_KEY_PASSPHRASE in the environment, or asked for on the terminal."
        ),
    ] = False,
    as_json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Make a pair of keys (Ed25519), by which a workspace signs its entries. Keep it outside of the workspace."""
    screen = Screen(as_json, quiet, verbose)
    with failures_in_one_line("Stopped.", as_json):
        from ssse.workspace.proof.keys import make_pair, public_path

        public = make_pair(file, _passphrase() if encrypt else None)
        beside = public_path(file)
        screen.result({"private": str(file), "public": str(beside), "fingerprint": public.fingerprint})
        screen.headline(f"Made the key {file} and, for those who check, {beside}.")
        screen.tell(facts(fingerprint=public.fingerprint, next=f"ssse init WORKSPACE --key {file} …"))
        screen.tell(
            "Who has the private key can sign in your name: keep it, and a copy of it, where the folder is not."
        )


def _passphrase() -> str:
    from ssse.workspace.proof.keys import PASSPHRASE

    given = os.environ.get(PASSPHRASE)
    if given is None:
        given = typer.prompt("Passphrase", hide_input=True, confirmation_prompt=True, err=True)
    if not given:
        raise InvalidSetting("An empty passphrase protects nothing; leave --encrypt out, or give one.")
    return given


def prove(
    workspace: Where,
    request: Annotated[str | None, typer.Option(metavar="ID", help="All entries of this request.")] = None,
    entry: Annotated[int | None, typer.Option(metavar="N", help="This entry.")] = None,
    since: Annotated[
        Path | None, typer.Option(metavar="HEADFILE", help="That nothing was changed since the last head in this file.")
    ] = None,
    output: Annotated[Path | None, typer.Option(metavar="FILE", help="Where to write; stdout if not given.")] = None,
    as_json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    no_wait: NoWait = False,
) -> None:
    """Write a proof that `ssse check` checks without the workspace: of a request, of an entry, or since a head."""
    screen = Screen(as_json, quiet, verbose)
    with failures_in_one_line(STOPPED, as_json):
        proved = open_workspace(workspace, screen, no_wait).prove(
            request=request, entry=entry, since=since, output=output
        )
        screen.result(proved.to_dict())
        if output is None and not as_json:
            print(proved.proof.to_json(), end="")
            return
        proof = proved.proof
        about = f"since {proof.older.time}" if proof.older else counted_entries(len(proof.members))
        screen.headline(f"The proof ({about}; head of {counted_entries(proof.head.size)}): {output}")
        if not proof.head.signatures:
            screen.tell("The head is not signed: who checks must have it from elsewhere (ssse check --head FILE).")


def counted_entries(number: int) -> str:
    return f"{number:,} {'entry' if number == 1 else 'entries'}"


def receipt(
    workspace: Where,
    request: Annotated[str, typer.Argument(metavar="REQUEST", help="The request's id.")],
    output: Annotated[
        Path | None,
        typer.Option(metavar="FILE.html", help="The page; its data goes beside it. receipt-REQUEST.html if not given."),
    ] = None,
    ids: Annotated[
        list[str] | None,
        typer.Option(
            "--with-ids", metavar="ID,ID,...", help="Those that the request named, to stand in it; @FILE: one a line."
        ),
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    no_wait: NoWait = False,
) -> None:
    """Check the workspace, and write a receipt of one request, which `ssse check` checks without the workspace."""
    screen = Screen(as_json, quiet, verbose)
    with failures_in_one_line(STOPPED, as_json):
        made = open_workspace(workspace, screen, no_wait).receipt(request, output, ids=listed(ids))
        screen.result(made.to_dict())
        from ssse.workspace.record.decision_words import label, why
        from ssse.workspace.record.describe import named

        decision, head = made.receipt.decision, made.receipt.proof.head
        screen.headline(f"The receipt: {made.page}")
        screen.tell(in_one_line(f"{label(decision)[0]}. {why(decision)}"))
        screen.tell(f"Its data: {made.data}")
        screen.tell(f"tree  {head.digest}")
        if others := made.receipt.others:
            screen.tell(f"Its entries name {counted(len(others), 'other request')} too: {named(others)}.")
        if head.signatures:
            screen.tell(f"To check it: ssse check {made.page} --key KEY.pub")
        else:
            screen.tell(
                f"To check it: ssse check {made.page} --head HASH, where HASH is that of the tree, which you publish "
                "where nobody can change it; or a file of heads (record.anchor)."
            )


def check(
    proof: Annotated[Path, typer.Argument(metavar="FILE", help="What `ssse prove` or `ssse receipt` wrote.")],
    key: Keys = None,
    head: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|HASH",
            help="Heads from elsewhere, of which one must be that of the proof; or the hash of one, as `tree` of "
            "`ssse verify` prints it.",
        ),
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Check a proof or a receipt, with no workspace at hand, by a public key or a head that you have from elsewhere."""
    screen = Screen(as_json, quiet, verbose)
    with failures_in_one_line("Stopped.", as_json):
        from ssse.workspace.page.receipt import check_receipt, is_receipt, read_receipt
        from ssse.workspace.proof.keys import PublicKey
        from ssse.workspace.proof.proofs import check_proof, read_proof

        keys = [PublicKey.read(path) for path in key or []]
        if proof.is_file() and is_receipt(_beginning(proof)):
            made, text = read_receipt(proof)
            found = made.proof
            checked = check_receipt(made, text, keys, _trusted(head, found.heads))
        else:
            found = read_proof(proof)
            checked = check_proof(found, keys, _trusted(head, found.heads))
        screen.result(
            {"ok": checked.ok, "shown": checked.shown, "wrong": checked.wrong}
            | {"entries": [one.shown for one in found.members] if checked.ok else []}
        )
        screen.headline(in_one_line(checked.shown if checked.ok else f"Nothing is shown: {checked.wrong}"))
        if not checked.ok:
            raise typer.Exit(DAMAGED)
        from ssse.workspace.record.describe import describe

        for one in found.members:
            shown = one.shown
            whose = f", request '{shown.get('request')}'" if shown.get("request") else ""
            said = describe(str(shown.get("kind")), shown.get("details") or {})
            screen.tell(in_one_line(f"{shown.get('seq')}  {shown.get('time')}  {shown.get('kind')}{whose}: {said}"))


def _beginning(path: Path) -> bytes:
    with path.open("rb") as opened:
        return opened.read(64)


def _trusted(given: str | None, heads: Sequence[Checkpoint]) -> list[Checkpoint] | None:
    """Heads that somebody has from elsewhere: of a file; or, of those that are to be checked, the one of that hash."""
    if given is None:
        return None
    if not HASH.fullmatch(given):
        if not Path(given).is_file():
            raise InvalidSetting(f"There is no file of heads '{given}'.")
        from ssse.workspace.record.anchors import read_heads

        return read_heads(Path(given)).heads
    if given in {one.head for one in heads} - {one.digest for one in heads}:
        raise InvalidSetting(
            "This is the hash of the ledger's newest entry, which vouches for nothing that a proof shows: give a file "
            "of heads, or the hash that `ssse verify` prints as tree."
        )
    return [one for one in heads if one.digest == given]


def upgrade(
    workspace: Where,
    key: Annotated[
        str | None, typer.Option(metavar="FILE", help="The private key that signs every entry from now on.")
    ] = None,
    anchor: Annotated[
        str | None, typer.Option(metavar="FILE", help="A file elsewhere, to which the heads go from now on.")
    ] = None,
    without: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Give up the key, the anchor or the anchor_command. Repeatable."),
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    no_wait: NoWait = False,
) -> None:
    """Give a workspace of an earlier version what it lacks, or any one another key or anchor; the ledger says so."""
    screen = Screen(as_json, quiet, verbose)
    with failures_in_one_line(STOPPED, as_json):
        upgraded = open_workspace(workspace, screen, no_wait).upgrade(key=key, anchor=anchor, without=without or ())
        screen.result(upgraded.to_dict())
        if not upgraded.gained:
            screen.headline("Nothing is lacking: the workspace is of this version.")
            return
        screen.headline(f"Upgraded; it now has {'; '.join(upgraded.gained)}.")
