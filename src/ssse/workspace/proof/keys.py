"""Ed25519 keys: made, stored, read, used. Only here is `cryptography` imported, and only where a key is used.

The private key is a PKCS8 PEM that only its owner may read, encrypted where a passphrase is given; the public one lies
beside it as NAME.pub. Both are read by other tools as well. Nothing here imports torch.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ssse.errors import InvalidSetting
from ssse.system import files
from ssse.workspace.proof.checkpoint import KEY_ID, Checkpoint, Signature, decoded, encoded

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

PASSPHRASE = "SSSE_KEY_PASSPHRASE"  # the environment's variable
PUBLIC = ".pub"
LARGEST = 1 << 16  # bytes of a key's file
RAW = 32  # bytes of a public key
ALGORITHM = b"\x01"  # Ed25519, of a signed note


@dataclass(frozen=True)
class PublicKey:
    """`raw`: its 32 bytes."""

    raw: bytes

    @classmethod
    def read(cls, path: Path) -> PublicKey:
        """From a PEM file, or from the private key's, if that is all there is."""
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        content = _content(path, "public")
        if b"PRIVATE KEY" in content:
            raise InvalidSetting(f"'{path}' is a private key; checking takes the public one, '{path.name}{PUBLIC}'.")
        try:
            key = serialization.load_pem_public_key(content)
        except Exception:  # whatever the library makes of somebody's bytes
            raise InvalidSetting(f"'{path}' is no public key in PEM, as `ssse key` writes it.") from None
        if not isinstance(key, Ed25519PublicKey):
            raise InvalidSetting(f"'{path}' is a key of another kind; ssse takes Ed25519, as `ssse key` makes it.")
        return cls(key.public_bytes_raw())

    @classmethod
    def from_text(cls, text: str) -> PublicKey:
        return cls(decoded(text, RAW, "A public key"))

    @property
    def text(self) -> str:
        """As the ledger names it."""
        return encoded(self.raw)

    @property
    def fingerprint(self) -> str:
        """By which people compare keys; SHA-256 of its 32 bytes."""
        return hashlib.sha256(self.raw).hexdigest()

    def key_id(self, name: str) -> bytes:
        return hashlib.sha256(name.encode() + b"\n" + ALGORITHM + self.raw).digest()[:KEY_ID]

    def signature(self, name: str, value: bytes) -> Signature:
        """One of this key, as a note holds it."""
        return Signature(name, self.key_id(name), value)

    def signed(self, content: bytes, signature: bytes) -> bool:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        try:
            Ed25519PublicKey.from_public_bytes(self.raw).verify(signature, content)
        except InvalidSignature:
            return False
        return True

    def signed_checkpoint(self, head: Checkpoint) -> bool:
        mine = [one for one in head.signatures if (one.name, one.key_id) == (head.origin, self.key_id(head.origin))]
        return any(self.signed(head.text().encode(), one.value) for one in mine)


@dataclass(frozen=True)
class PrivateKey:
    """Signs. `public`: what others check with."""

    _key: Any
    public: PublicKey

    @classmethod
    def read(cls, path: Path) -> PrivateKey:
        """Of a file that nobody else may read; its passphrase from the environment.

        Raises:
            InvalidSetting: it cannot be read, others may read it, or it is no such key.
        """
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        content = _content(path, "private")
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o077:
            raise InvalidSetting(
                f"The private key '{path}' may be read or written by others (mode {mode:04o}). `chmod 600` it; if "
                "somebody may have seen it, make a new one."
            )
        if b"PRIVATE KEY" not in content:
            raise InvalidSetting(f"'{path}' is no private key in PEM, as `ssse key` writes it.")
        secret = os.environ.get(PASSPHRASE)
        encrypted = b"ENCRYPTED PRIVATE KEY" in content
        if encrypted and not secret:
            raise InvalidSetting(f"The private key '{path}' is encrypted: put its passphrase into {PASSPHRASE}.")
        try:
            key = serialization.load_pem_private_key(content, secret.encode() if encrypted and secret else None)
        except Exception:  # whatever the library makes of somebody's bytes
            hint = f"{PASSPHRASE} is not its passphrase, or it is damaged" if encrypted else "it is damaged"
            raise InvalidSetting(f"The private key '{path}' cannot be read: {hint}.") from None
        if not isinstance(key, Ed25519PrivateKey):
            raise InvalidSetting(f"'{path}' is a key of another kind; ssse takes Ed25519, as `ssse key` makes it.")
        return cls._of(key)

    @classmethod
    def generate(cls) -> PrivateKey:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return cls._of(Ed25519PrivateKey.generate())

    @classmethod
    def _of(cls, key: Ed25519PrivateKey) -> PrivateKey:
        return cls(key, PublicKey(key.public_key().public_bytes_raw()))

    def sign(self, content: bytes) -> bytes:
        """The same for the same content, always."""
        return self._key.sign(content)

    def to_pem(self, passphrase: str | None) -> bytes:
        from cryptography.hazmat.primitives import serialization as forms

        secret = forms.BestAvailableEncryption(passphrase.encode()) if passphrase else forms.NoEncryption()
        return self._key.private_bytes(forms.Encoding.PEM, forms.PrivateFormat.PKCS8, secret)

    def public_pem(self) -> bytes:
        from cryptography.hazmat.primitives import serialization as forms

        return self._key.public_key().public_bytes(forms.Encoding.PEM, forms.PublicFormat.SubjectPublicKeyInfo)


def make_pair(path: Path, passphrase: str | None = None) -> PublicKey:
    """A new pair, `path` and `path`.pub. Never over another file, and never into a workspace.

    Raises:
        InvalidSetting: one of the files is there, or lies in a workspace.
    """
    public = public_path(path)
    for one in (path, public):
        if os.path.lexists(one):
            raise InvalidSetting(f"'{one}' exists already, and a key is never overwritten; name another file.")
    if (inside := workspace_around(path)) is not None:
        raise InvalidSetting(
            f"'{path}' lies in the workspace '{inside}': who can write that could sign. Put it elsewhere."
        )
    key = PrivateKey.generate()
    path.parent.mkdir(parents=True, exist_ok=True)
    # The public one first: a private key without it would still sign, and nobody could check.
    files.write_new(public, key.public_pem(), 0o644)
    try:
        files.write_new(path, key.to_pem(passphrase), 0o600)
    except BaseException:
        public.unlink()
        raise
    return key.public


def public_path(path: Path) -> Path:
    return path.with_name(path.name + PUBLIC)


def workspace_around(path: Path) -> Path | None:
    """The workspace that a path lies in."""
    return next((folder for folder in path.absolute().resolve().parents if (folder / "ledger.sqlite").exists()), None)


def signer_of(head: Checkpoint, keys: Sequence[PublicKey | None]) -> PublicKey | None:
    """Which of the keys signed it."""
    return next((key for key in keys if key is not None and key.signed_checkpoint(head)), None)


def _content(path: Path, kind: str) -> bytes:
    try:
        if not path.is_file():
            raise InvalidSetting(
                f"There is no {kind} key '{path}'. Put it back; if it is lost, `ssse key FILE` makes a pair, and `ssse "
                "upgrade WORKSPACE --key FILE` goes on with that one."
            )
        with path.open("rb") as opened:
            content = opened.read(LARGEST + 1)
    except OSError as error:
        raise InvalidSetting(f"The {kind} key '{path}' cannot be read ({error.strerror or error}).") from None
    if len(content) > LARGEST:
        raise InvalidSetting(f"'{path}' is no {kind} key: it has more than {LARGEST:,} bytes.")
    return content
