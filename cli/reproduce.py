"""`collectx reproduce RUN_DIR [overrides] [flags]`: repeats a run from its snapshot, and compares the batches.

The composition starts from the saved configuration, so changes of the packaged defaults do not matter; only groups
that an override names are composed from the packaged choices.

Two runs are compared by the batch digests in their folders.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import islice, zip_longest
from pathlib import Path

from collectx.cli.arguments import Arguments, subcommand
from collectx.cli.compose import parsed
from collectx.cli.overrides import key_of, quoted
from collectx.cli.run import launch, print_changes
from collectx.cli.saved import compose_saved, find_run_folder, working_directory
from collectx.config.derived import why_not_recorded
from collectx.config.problem import counted
from collectx.config.schema.run import RunConfig
from collectx.errors import ConfigError, DamagedFileError
from collectx.jobs.status import Outcome
from collectx.run import RunFolder
from collectx.run.folder import saved_config, snapshot
from collectx.run.folder.result import LOSSES
from collectx.run.preflight import SHARED_PATHS
from collectx.run.resume import recorded_order
from collectx.run.terminal import printing


class Verdict(StrEnum):
    """The outcome of a comparison."""

    IDENTICAL = "identical"
    DIFFERENT = "different"
    NOT_COMPARABLE = "not comparable"


@dataclass(frozen=True)
class Comparison:
    """The result of `compare`. `message` tells the user the batch or the reason in one sentence; `first_different` is
    the index of the first batch that differs, or that only one run has; None if there is none."""

    verdict: Verdict
    message: str
    first_different: int | None = None

    @property
    def identical(self) -> bool:
        return self.verdict is Verdict.IDENTICAL


def compare(old: str | Path, new: str | Path, limit: int | None = None) -> Comparison:
    """Compares the batches of two run folders by their digests, which it reads from `metrics.jsonl`. `limit` is the
    number of batches of `old` to compare; None: all."""
    count = 0
    for index, (before, after) in enumerate(zip_longest(islice(digests_of(old), limit), digests_of(new))):
        if before is None or after is None:
            shorter = old if before is None else new
            before_it = "the batch before it is" if index == 1 else f"the {index} batches before it are"
            message = f"{shorter} contains no batch {index}; {before_it} identical"
            return Comparison(Verdict.DIFFERENT, message, index) if index else _no_batches(shorter)
        for folder, digest in ((old, before), (new, after)):
            if not digest:
                reason = f"{folder} has no digest of batch {index}. Run it with trainer.digest=true."
                return Comparison(Verdict.NOT_COMPARABLE, reason)
        if before.rpartition("-")[0] != after.rpartition("-")[0]:
            reason = f"batch {index} has digests of different kinds, {before} in {old} and {after} in {new}"
            return Comparison(Verdict.NOT_COMPARABLE, reason)
        if before != after:
            message = f"batch {index} is the first that differs"
            return Comparison(Verdict.DIFFERENT, message, index)
        count = index + 1
    if not count:
        return _no_batches(old)
    return Comparison(
        Verdict.IDENTICAL, f"all {count:,} batches are identical" if count > 1 else "the only batch is identical"
    )


def _no_batches(folder: str | Path) -> Comparison:
    return Comparison(Verdict.NOT_COMPARABLE, f"{folder} contains no batch to compare")


def digests_of(folder: str | Path) -> Iterator[str]:
    """Yields the digest of each batch of a run; "" for a batch without one. Raises `DamagedFileError` if the metrics
    cannot be read."""
    return (line.digest or "" for line in RunFolder(folder).read_metrics())


# How many differences between two snapshots are printed.
_SHOWN = 12
_USAGE = """\
collectx reproduce RUN_DIR [overrides] [flags]: repeat a run from RUN_DIR/snapshot and compare batches.

If RUN_DIR was written on another machine, the command first prints which code the configuration imports. If it belongs
to another user, add --trust.

A run that failed or was interrupted is repeated up to its last batch; a run that was resumed with another
configuration, up to the first change that affects its batches.

Exit status: 0 identical (or completed, if the run recorded no batch digests), 1 different or failed, 2 wrong usage.
The option trainer.digest says which runs record digests."""


def _reproduce(arguments: Arguments) -> int:
    why_no_sweep = "reproduce repeats one run. For a sweep, use `collectx run -m`."
    old, overrides = find_run_folder(arguments, _USAGE, why_no_sweep)
    path, change = saved_config.repeatable_config(old)
    saved = saved_config.read_config(path)
    # A damaged file is reported before the run, not after it.
    digests = [*digests_of(old.path)][: None if change is None else change.batches]
    result, _ = old.read_result(), list(old.read_events())
    ended = "failed" if result is None else result["status"]
    if ended != "completed" and not digests:
        raise ConfigError(f"{old.path} delivered no batch, so there is nothing to repeat.")
    had_digest = bool(digests) and all(digests)
    composer, cfg = compose_saved(old, saved, overrides, arguments)
    typed = parsed(composer.check(overrides).overrides)
    print_changes(old, cfg, len(digests))
    for override in typed:
        if override.key_or_group == "hydra.run.dir" and Path(str(override.value())).resolve() == old.path.resolve():
            raise ConfigError(f"{override.input_line} is the folder of the run to reproduce. Choose another folder.")
    if not had_digest:
        printing.note(f"{old.path} recorded no batch digests, so the run is repeated without a comparison.")
    if change is not None:
        first = counted(change.batches, "batch", "batches")
        only = "the first batch" if change.batches == 1 else f"the first {first}"
        printing.note(f"{old.path} was resumed after {first} {change.reason}, so only {only} will be repeated.")
    before, _ = saved_config.typed(saved)
    is_cut = ended != "completed" or change is not None or before.run.max_minutes is not None
    reason = _order_problem(old, before, overrides)
    if reason and had_digest:
        printing.note(f"the batches may differ from those in {old.path}: {reason}.")
    added = [*_added(cfg, set(map(key_of, overrides)), had_digest, len(digests) if is_cut else None)]
    if old.initial.is_file() and "policy.init_from" not in map(key_of, overrides):
        added += [f"policy.init_from={quoted(old.initial)}", "policy.init_weights=newest"]
    # Waits for all workers: otherwise the ones that take part would depend on when they are ready.
    first_words = ["collector.min_workers=null"] if before.collector.min_workers is not None else []
    first_words += working_directory(old)
    order = [f"++collector.order_of={quoted(old.path)}"] if reason is None else []
    results: list[Outcome] = []
    status = launch(composer, replace(arguments, words=(*first_words, *overrides, *added, *order)), results)
    # The error of a failed run may repeat after its last batch.
    if not results or not had_digest or status not in ((0, 1) if ended == "failed" else (0,)):
        return status
    # A run that has not ended may have more batches than before, and the user may have asked for fewer.
    keys, count = [override.key_or_group for override in typed], len(digests)
    if {"run.max_batches", "collector.total_frames"}.intersection(keys):
        count = min(count, len([*digests_of(results[0].folder)]))
    return _compared(old, path, results[0].folder, count, reason, is_cut, keys)


def _added(cfg: RunConfig, keys: Collection[str], compares: bool, num_batches: int | None) -> Iterator[str]:
    """Yields the overrides with which a run of `cfg` can be compared, except for the `keys` that the user has set.
    `num_batches` is how many batches to repeat; None: all."""
    if compares and "trainer.digest" not in keys:
        yield "trainer.digest=true"
    if getattr(cfg.trainer, "dir", None) is not None:
        yield "trainer.dir=null"  # the batches are compared; the data set contains them already
    # Each run writes its own table and events.
    for name, path in SHARED_PATHS.items():
        if path(cfg) is not None and name not in keys:
            yield f"{name}=null"
    if getattr(cfg.launcher, "wait", True) is False:
        yield "launcher.wait=true"  # batches are compared when the run has ended
    if num_batches is not None and "run.max_batches" not in keys:
        yield f"run.max_batches={num_batches}"
    if cfg.run.max_minutes is not None and "run.max_minutes" not in keys:
        yield "run.max_minutes=null"


def _order_problem(old: RunFolder, saved: RunConfig, overrides: Sequence[str]) -> str | None:
    """Returns the reason why batches may differ from those in `old`; "" if seeds determine them; None if they can be
    delivered in the recorded order of `old`. `saved` is the configuration of `old`."""
    collector = saved.collector
    if why := why_not_recorded(saved):
        return why
    if collector.schedule != "async":
        if collector.preemptive_threshold is not None:
            return "with collector.preemptive_threshold, a batch ends when enough workers are ready"
        has_members = collector.min_workers is not None
        return "with collector.min_workers, a batch contains the frames of the workers that are ready" * has_members
    if any(text.lstrip("+~").startswith("collector") for text in overrides):
        return "you overrode options of the collector"
    try:
        recorded_order(old.path, saved.trainer.num_learners)
    except DamagedFileError:
        raise
    except ValueError as error:
        return str(error)
    return None


def _compared(
    old: RunFolder, config: Path, new: Path, limit: int, reason: str | None, is_cut: bool, typed: Sequence[str]
) -> int:
    """Prints the result of the comparison, and what may explain a difference; returns the exit status. `config` is the
    repeated configuration of `old`, and `typed` contains the keys and groups of the command's overrides."""
    comparison = compare(old.path, new, limit)
    up_to = " up to its end" if comparison.identical and is_cut else ""
    printing.say(f"{comparison.verdict.value}{up_to}: {comparison.message}")
    if comparison.identical:
        return 0
    if reason:
        order = "the order in which workers are ready, which was not repeated"
        printing.say(f"note: the batches depend on {order}: {reason}.")
    elif lost := {event["worker"] for event in old.read_events() if event.get("event") in LOSSES}:
        workers = f"worker{'s' * (len(lost) > 1)} {', '.join(map(str, sorted(lost)))}"
        printing.say(f"note: {old.path} lost {workers}, and batches after a loss cannot be repeated.")
    if changes := saved_config.changes(config, RunFolder(new).config, typed):
        shown = "; ".join(changes[:_SHOWN]) + ("; ..." if len(changes) > _SHOWN else "")
        printing.say(f"note: you changed {shown}. This may explain the difference.")
    if differences := snapshot.differences(old, RunFolder(new), limit):
        more = f"\n  and {len(differences) - _SHOWN} more: see snapshot/meta.json" if len(differences) > _SHOWN else ""
        others = "these other differences" if changes else "these differences"
        explained = f"note: {others} between the runs may explain the result:"
        printing.say("\n  ".join([explained, *differences[:_SHOWN]]) + more)
    return 1


main = subcommand("reproduce", _reproduce, _USAGE, lists_problems=True)
