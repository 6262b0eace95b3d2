"""Steps of the experiments: every one is taken and measured, also those that nobody should serve."""

from __future__ import annotations

from functools import partial

from ssse.erasure.erase import erase as erase_or_refuse

erase = partial(erase_or_refuse, force=True)
