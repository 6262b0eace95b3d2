"""The processes that work together: who am I, what is mine, and sums with the others. One alone is a group of one.

The engine is torch.distributed: gloo on CPUs, NCCL on GPUs. Tensors stay on the device they are on. Vectors are the
same on every process to the last bit, since one collective made them; so all take the same branches, and meet in the
same collectives.
"""

from __future__ import annotations

import builtins
import re
import socket
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from ssse import errors
from ssse.errors import GroupBroken, InvalidSetting, SSSEError

CPU = torch.device("cpu")
WIRE: Counter[str] = Counter()  # bytes that this process gave to each kind of collective
Value = TypeVar("Value")


@dataclass(frozen=True)
class Group:
    """Process `rank` of `size`, whose tensors are on `device`."""

    rank: int = 0
    size: int = 1
    device: torch.device = CPU

    @property
    def first(self) -> bool:
        return self.rank == 0

    @property
    def alone(self) -> bool:
        """Whether there is nobody to meet."""
        return self.size == 1

    def owns(self, place: int) -> bool:
        """Things in a row are dealt out in turns."""
        return place % self.size == self.rank

    def owner(self, place: int) -> int:
        return place % self.size

    def sum(self, tensor: Tensor) -> Tensor:
        """Over all processes, in place, the same on each."""
        return self._in_place("all_reduce", tensor, dist.all_reduce)

    def sum_at(self, tensor: Tensor, owner: int) -> Tensor:
        """In place at the owner; what the others have of it afterwards has no meaning."""
        return self._in_place("reduce", tensor, lambda whole: dist.reduce(whole, owner))

    def spread(self, tensor: Tensor, owner: int) -> Tensor:
        """As the owner has it, in place."""
        return self._in_place("broadcast", tensor, lambda whole: dist.broadcast(whole, owner))

    def exchange(self, parts: list[Tensor]) -> Tensor:
        """One part for each process, whole numbers; what came from all of them, joined."""
        if self.alone:
            return parts[0]
        counts = torch.tensor([len(part) for part in parts], device=self.device)
        coming = torch.empty_like(counts)
        self._run("numbers", counts, lambda: dist.all_to_all_single(coming, counts))
        given, sizes = torch.cat(parts), coming.tolist()
        out = torch.empty(sum(sizes), dtype=given.dtype, device=given.device)
        self._run("all_to_all", given, lambda: dist.all_to_all_single(out, given, sizes, [len(part) for part in parts]))
        return out

    def numbers(self, *mine: float) -> Tensor:
        """Of every process, shape (size, len(mine)), float64."""
        table = torch.zeros(self.size, len(mine), dtype=torch.float64, device=self.device)
        table[self.rank] = torch.tensor(mine, dtype=torch.float64)
        if not self.alone:
            self._run("numbers", table, lambda: dist.all_reduce(table))
        return table

    def neighbours(self) -> int:
        """Processes on this machine, this one among them."""
        return self.gather(socket.gethostname()).count(socket.gethostname())

    def gather(self, mine: Value) -> list[Value]:
        """Of every process: small objects, never on the way of the data."""
        if self.alone:
            return [mine]
        found: list[Any] = [None] * self.size
        self._run("objects", None, lambda: dist.all_gather_object(found, mine))
        return found

    def from_first(self, make: Callable[[], Value]) -> Value:
        """Made by the first process alone, and told to the others; where it fails there, it fails everywhere."""
        made: list[Any] = [None]
        with self.together():
            if self.first:
                made[0] = make()
        if not self.alone:
            self._run("objects", None, lambda: dist.broadcast_object_list(made, 0))
        return made[0]

    def agree(self, declare: Callable[[], Mapping[str, Any]]) -> None:
        """Refuse where another process declares something else; keys are the words for it.

        Raises:
            InvalidSetting: names the first process that differs from the first one, and in what.
        """
        if self.alone:
            return
        told = self.gather({key: str(value) for key, value in declare().items()})
        for rank, theirs in enumerate(told):
            for key, value in told[0].items():
                if theirs.get(key) != value:
                    raise InvalidSetting(
                        f"Rank {rank} of {self.size} has another {key} than rank 0: {_short(theirs.get(key))}, and "
                        f"there {_short(value)}. All processes of a group must be given the same."
                    )

    @contextmanager
    def together(self) -> Iterator[None]:
        """Work of each for itself, without collectives: where it fails on one process, all of them raise that."""
        mine: Exception | None = None
        try:
            yield
        except GroupBroken:
            raise
        except Exception as error:
            if self.alone:
                raise
            mine = error
        if self.alone:
            return
        failed = self.numbers(float(mine is not None))[:, 0].nonzero()[:, 0].tolist()
        if not failed:
            return
        kind, text = self.gather((type(mine).__name__, str(mine)))[failed[0]]
        if failed[0] == self.rank and mine is not None:
            raise mine
        raise _error_named(kind)(f"Rank {failed[0]} of {self.size}: {text}") from mine

    def _in_place(self, kind: str, tensor: Tensor, collective: Callable[[Tensor], Any]) -> Tensor:
        """NCCL takes nothing that has gaps or another order."""
        if self.alone:
            return tensor
        whole = tensor.contiguous()
        self._run(kind, whole, lambda: collective(whole))
        return tensor if whole is tensor else tensor.copy_(whole)

    def _run(self, kind: str, tensor: Tensor | None, collective: Callable[[], Any]) -> None:
        WIRE[kind] += 0 if tensor is None else tensor.numel() * tensor.element_size()
        try:
            collective()
        except RuntimeError as error:
            raise GroupBroken(
                f"Rank {self.rank} of {self.size} stops, since another process of the group has ended, or has not "
                f"answered within the group's timeout ({in_short(error)})."
            ) from error


ALONE = Group()


def current_group(device: torch.device | None = None) -> Group:
    """The process group that this process was initialised in, if it was; else it is alone."""
    if not (dist.is_available() and dist.is_initialized()):
        return ALONE
    group = Group(dist.get_rank(), dist.get_world_size(), device or CPU)
    if not group.alone and group.device.type == "cpu" and "gloo" not in dist.get_backend_config():
        raise InvalidSetting(
            f"The process group is for GPUs alone ({dist.get_backend()}), and the model is on the CPU. Move it, or use "
            'init_process_group("gloo").'
        )
    return group


def _error_named(name: str) -> type[Exception]:
    """One of ours that takes a sentence, or an OSError."""
    usual: Any = getattr(builtins, name, None)
    if isinstance(usual, type) and issubclass(usual, OSError):
        return usual
    found: Any = getattr(errors, name, None)
    plain = isinstance(found, type) and issubclass(found, SSSEError) and found is not errors.Refused
    return found if plain else SSSEError


def in_short(error: Exception) -> str:
    """What torch says, without where in its code."""
    text = " ".join(str(error).split())
    return re.sub(r"^\[[^]]*\]\s*", "", text).split(". ")[0][:120]


def _short(text: str | None) -> str:
    return "none" if text is None else text if len(text) <= 60 else f"{text[:57]}…"
