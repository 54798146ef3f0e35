"""Limits the time in which a command, other than a run, makes an env to read its spaces."""

from __future__ import annotations

import os
import sys
from contextlib import AbstractContextManager

from collectx.config.derived import env_option
from collectx.config.schema.run import RunConfig
from collectx.errors import summary_of
from collectx.limits import limited
from collectx.run.terminal import printing


def env_limit(cfg: RunConfig) -> AbstractContextManager[None]:
    """Limits a block that makes an env of `cfg` to `collector.start_timeout_s`; see `limited`. Prints where the block
    is if it takes long. Ends the process, with status 1, if the block cannot be interrupted."""

    def give_up(error: BaseException) -> None:
        printing.error("\n".join([summary_of(error), *error.__notes__]))
        sys.stdout.flush()
        os._exit(1)

    what = f"making an env ({env_option(cfg.env)})"
    return limited(what, "collector.start_timeout_s", cfg.collector.start_timeout_s, printing.note, give_up)
