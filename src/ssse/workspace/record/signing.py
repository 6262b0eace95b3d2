"""Which key signs what is appended: the one that the settings name, if it is the right one. Without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ssse.errors import Damaged, InvalidSetting
from ssse.workspace import settings as toml
from ssse.workspace.proof.keys import PrivateKey, PublicKey
from ssse.workspace.record.database import FILE
from ssse.workspace.record.heads import NAMES_KEY, head_at, key_named
from ssse.workspace.record.ledger import Ledger
from ssse.workspace.settings import Settings


@dataclass(frozen=True)
class Signing:
    """`old`: the key in force until now, by what the ledger names; `key`: the one to sign with from now on."""

    old: PublicKey | None = None
    key: PrivateKey | None = None

    @property
    def public(self) -> PublicKey | None:
        return self.key.public if self.key else None

    @property
    def changed(self) -> bool:
        return self.old != self.public

    def named(self) -> dict[str, Any]:
        """For the details of an entry that says which key is in force."""
        found: dict[str, Any] = {"public_key": self.public.text if self.public else None}
        if self.changed and self.old is not None:
            found["keys"] = [key.fingerprint if key else None for key in (self.old, self.public)]
        return found


def read_signing(folder: Path, ledger: Ledger, settings: Settings, *, change: bool = False) -> Signing:
    """The key that the settings name, before anything is written. `change`: it may be another one from now on.

    Raises:
        InvalidSetting: it cannot be used, or another key lies where the one in force was.
        Damaged: the key in force has not signed the ledger as it is, or there is none and the settings name a key: to
            sign on top of it would be to vouch for it.
    """
    known = ledger.last(*NAMES_KEY)
    old = None if known is None else key_named(known)
    key = read_key(folder, settings)
    if old is not None and not old.signed_checkpoint(head_at(ledger, ledger.frontier.size)):
        raise Damaged(f"'{folder / FILE}' is not as the key signed it. Restore a backup; `verify --key` says more.")
    signing = Signing(old, key)
    if change or not signing.changed:
        return signing
    if old is None or key is None:
        raise Damaged(
            f"'{folder / FILE}' has a key in its settings {'and no signature' if key else 'no more, and signatures'}, "
            "which no command of ssse wrote. Restore a backup; `ssse verify --key` says more."
        )
    raise InvalidSetting(
        f"'{key_path(folder, settings)}' is not the key that the ledger names: {key.public.fingerprint[:12]}…, and not "
        f"{old.fingerprint[:12]}…. Put that one back; `ssse upgrade --key FILE` changes keys. If it is your key, the "
        "ledger was written anew; `ssse verify --key` says more."
    )


def read_key(folder: Path, settings: Settings) -> PrivateKey | None:
    path = key_path(folder, settings)
    return None if path is None else PrivateKey.read(path)


def key_path(folder: Path, settings: Settings) -> Path | None:
    return None if settings.record.key is None else outside(folder, settings.record.key, "record.key")


def outside(folder: Path, path: str, name: str) -> Path:
    """Where a setting points to, which is not into the workspace: what vouches for it does not lie in it."""
    found = toml.absolute(path, folder)
    if found.resolve().is_relative_to(folder.resolve()):
        raise InvalidSetting(f"{name} is '{path}', in the workspace itself: who can write that could replace it.")
    return found


def recorded_command(ledger: Ledger) -> str | None:
    """The command that `init` was given. What a file that may have been edited says is not run."""
    return _setting(ledger.created.details, "anchor_command")


def _setting(details: Mapping[str, Any], key: str) -> Any:
    return ((details.get("settings") or {}).get("record") or {}).get(key)
