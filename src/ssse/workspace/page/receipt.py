"""A receipt as a page, and the check of one: of the page, or of its data, with nothing but a key or a head."""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path

from ssse.errors import InvalidData, InvalidSetting, SSSEError
from ssse.rendering.numbers import NOTHING
from ssse.rendering.templates import template
from ssse.system.version import __version__
from ssse.workspace.page import words
from ssse.workspace.proof.checkpoint import Checkpoint
from ssse.workspace.proof.keys import PublicKey
from ssse.workspace.proof.proofs import LARGEST, Checked, check_proof
from ssse.workspace.record import decision_words, describe
from ssse.workspace.record.heads import NAMES_KEY
from ssse.workspace.record.published import PUBLIC
from ssse.workspace.record.receipt import WHAT, Receipt, parse_receipt

PAGE, DATA = "<!DOCTYPE html>", f'{{\n "what": "{WHAT}"'  # how the two begin
START, END = '<pre id="receipt">', "</pre>"
ALTERED = "It was altered: it is not, character for character, what follows from its proof."

OTHER_VERSION = (
    "It says that it was written by ssse {}, whose words this version, {}, cannot compare: check it with that one. Its "
    "entries do belong to the head."
)
# What reading entries may end with that a proof vouches for and no ssse wrote.
NOT_OURS = (SSSEError, KeyError, TypeError, ValueError, AttributeError, IndexError, StopIteration)


def render_receipt(receipt: Receipt) -> str:
    """One HTML file: no network, no script; the same receipt gives the same bytes."""
    return template("ssse.workspace.page", "receipt.html.j2").render(
        receipt=receipt.body,
        decision=receipt.decision,
        label=decision_words.label(receipt.decision),
        commands=decision_words.commands(receipt.decision),
        meant=decision_words.placeholders(receipt.decision),
        data=receipt.to_json(),
        words=words,
        describe=describe,
        few=PUBLIC,
        nothing=NOTHING,
    )


def is_receipt(content: bytes) -> bool:
    """Or means to be one."""
    return content.startswith((PAGE.encode(), DATA.encode()))


def read_receipt(path: Path) -> tuple[Receipt, str]:
    """With its text, of the page or of the data.

    Raises:
        InvalidData: it is no receipt.
    """
    if not path.is_file():
        raise InvalidSetting(f"There is no file '{path}'.")
    with path.open("rb") as opened:
        content = opened.read(LARGEST + 1)
    try:
        return parse(content)
    except InvalidData as error:
        raise InvalidData(f"'{path}' is no receipt as `ssse receipt` writes it. {error}") from None


def parse(content: bytes) -> tuple[Receipt, str]:
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        raise InvalidData("It is not UTF-8 text.") from None
    if not text.startswith(PAGE):
        return parse_receipt(text), text
    before, found, rest = text.partition(START)
    data, ended, _ = rest.partition(END)
    if not found or not ended or not before:
        raise InvalidData("The page has no data in it.")
    return parse_receipt(html.unescape(data)), text


def check_receipt(
    receipt: Receipt, text: str, keys: Sequence[PublicKey] = (), trusted: Sequence[Checkpoint] | None = None
) -> Checked:
    """Whether the entries belong to a head that is vouched for, and all the rest follows from them.

    `text`: of the file, page or data. `keys`, `trusted`: as of `check_proof`.
    """
    found = check_proof(receipt.proof, keys, trusted)
    if not found.ok:
        return found
    if receipt.version != __version__:
        return Checked("", OTHER_VERSION.format(receipt.version[:40], __version__))
    try:
        same = text == (render_receipt(receipt) if text.startswith(PAGE) else receipt.to_json())
        if not same or not _signed_as_named(receipt):
            return Checked("", ALTERED)
        if not receipt.names_its_samples:
            return Checked("", "The ids in it are not those that the request named.")
    except NOT_OURS:
        return Checked("", "Its entries are not as ssse writes them.")
    said = f"{decision_words.label(receipt.decision)[0]}: {decision_words.why(receipt.decision)}"
    return Checked(f"The receipt of request '{receipt.request}' is genuine. {said} {found.shown}")


def _signed_as_named(receipt: Receipt) -> bool:
    """A head has the signature of the key that the ledger names, in its one form; where it names none, none.

    Who checks by a head of theirs checks no signature; it is in the receipt all the same.
    """
    head, naming = receipt.proof.head, [e for e in receipt.story.entries if e["kind"] in NAMES_KEY]
    text = naming[-1]["details"].get("public_key") if naming else None
    key = None if text is None else PublicKey.from_text(text)
    if key is None or not head.signatures:
        return key is None and not head.signatures
    value = head.signatures[0].value
    return head.signatures == (key.signature(head.origin, value),) and key.signed(head.text().encode(), value)
