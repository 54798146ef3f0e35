"""A run in the trainer's process, from a configuration to a run folder with a result.

    prepare   snapshot -> env's spec -> policy -> trainer -> collector, whose workers start
    collect   the trainer takes batches from the collector
    finish    the last lines, the checkpoint; the workers are closed -> result.json

torch is imported here, or with the preloads of the fork server for local workers.
"""

from __future__ import annotations

import dataclasses
import os
import random
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from collectx import process
from collectx.config.derived import env_option, num_processes_of, share_of
from collectx.config.schema.env import GymnasiumConfig
from collectx.config.schema.policy import TrainablePolicyConfig
from collectx.config.schema.run import LoggerConfig, RunConfig
from collectx.config.schema.trainer import CustomTrainerConfig
from collectx.errors import ConfigError, LauncherError, SpaceError, text_of
from collectx.place import place_of
from collectx.process import limited
from collectx.progress import counting_imports, packages
from collectx.run import cores, preflight
from collectx.run.context import RunContext
from collectx.run.folder import saved_config, snapshot
from collectx.run.folder.events import EventLog
from collectx.run.folder.files import write_json
from collectx.run.folder.layout import RunFolder, locked
from collectx.run.folder.result import Result, ResultBuilder, type_name
from collectx.run.log_limit import LogLimit
from collectx.run.resume import ResumePoint, recorded_order, resume_point
from collectx.run.signals import RunStopped, Signals
from collectx.run.statistics import earlier_curve
from collectx.run.terminal import display, printing
from collectx.run.words import END

if TYPE_CHECKING:
    from collectx.collector import CollectorCore
    from collectx.env.base import Env, EnvSpec
    from collectx.loggers import Logger
    from collectx.place.launcher import Launcher
    from collectx.run.batches import RunBatches
    from collectx.run.checkpointer import Checkpointer
    from collectx.run.evaluator import Evaluator
    from collectx.run.learner_processes import FirstLearner, LearnerProcesses
    from collectx.run.logger_threads import LoggerThreads
    from collectx.trainer.base import Trainer
    from collectx.transport.network.handshake import Endpoint

OpenLauncher: TypeAlias = "Callable[[Callable[[str], None]], AbstractContextManager[Launcher]]"

# If closing the envs of this process takes longer, the error that ended the run is shown first.
_CLOSE_S = 2.0


def execute(
    cfg: RunConfig,
    folder: Path,
    argv: list[str],
    open_launcher: OpenLauncher | None = None,
    point: display.Point | None = None,
) -> Result:
    """Runs `cfg`, blocks until the run has ended, and writes everything about it to `folder`.

    A run that fails or is interrupted (SIGINT, SIGTERM, SIGHUP) does not raise: the reason is printed to standard error
    and written to `result.json`, which is always the last file.

    Args:
        open_launcher: opens the launcher of workers that are SLURM jobs, or tasks of one job; called with a function
            that shows messages. None: the launcher of `cfg`.
        point: the point of a sweep that the run is. The sweep's command says how to continue it.

    Raises:
        ConfigError: before any worker has started, for a mistake that no rule can find (an observation space that
            cannot be stored, a device that does not exist), or a folder that already contains a run (`run.overwrite`)
            or cannot be created, or a path of a logger at which another run wrote. Leaves the folder unchanged; only a
            job's folder gets the result of a failed run.
    """
    run_folder = RunFolder(folder)
    # The command that submitted the job made the folder, and the job's log is open.
    is_job = place_of(cfg).is_job
    resumes = cfg.run.resume == "auto" and run_folder.has_run
    with locked(run_folder, cfg.run.overwrite or resumes, force=is_job):
        if resumes and (done := saved_config.completed_result(run_folder, cfg)) is not None:
            display.print_completed(done, point=point)
            return done
        if foreign := preflight.foreign_outputs(cfg, run_folder):
            raise ConfigError(*foreign)
        resumed = resume_point(run_folder, cfg, printing.message) if resumes else None
        with Signals(printing.note) as signals:
            record = ResultBuilder(cfg, signals)
            try:
                with signals.hold():
                    _begin(run_folder, is_job, resumed is not None, record)
                _Execution(RunContext(cfg, run_folder, signals, record), resumed).run(argv, open_launcher, point)
            except BaseException as error:
                record.end(error)
            if record.config_error is not None and not is_job:
                run_folder.restore()
                raise record.config_error
            result = _write_result(run_folder, record, signals, point)
        if record.config_error is not None:
            raise record.config_error
        return result


def _begin(run_folder: RunFolder, is_job: bool, keep_run: bool, record: ResultBuilder) -> None:
    """Prepares the folder for the new run, and sets an earlier one aside."""
    try:
        if not is_job:
            run_folder.set_aside(keep_run)
        run_folder.begin(keep_logs=is_job, keep_run=keep_run)
    except ConfigError as error:
        record.config_error = error
        raise


def _write_result(
    run_folder: RunFolder, record: ResultBuilder, signals: Signals, point: display.Point | None = None
) -> Result:
    """Writes and shows the result. If the run has ended before its workers started, restores the earlier one of the
    folder instead of writing."""
    # No worker needs the address any more.
    run_folder.rendezvous.unlink(missing_ok=True)
    run_folder.secret.unlink(missing_ok=True)
    signals.seal()
    is_restored, result = run_folder.has_replaced, record.result(run_folder.path)
    try:
        if is_restored:
            run_folder.restore()
        else:
            write_json(run_folder.result, result.as_json())
    except OSError as error:
        record.end(error)
        result = record.result(run_folder.path)
    if is_restored:
        printing.note(f"the earlier run in {printing.typed(run_folder.path)} stays, because the new one did not begin")
    display.log_errors(record.errors, run_folder.log("trainer"))
    if record.config_error is None:
        display.print_result(result, record.errors, run_folder.log("trainer"), point)
    return result


class _Execution:
    """A run whose folder is prepared: `run` takes the three steps `_prepare`, `_collect` and `_finish`. Errors of
    training go to `record`."""

    rank = 0

    def __init__(self, run: RunContext, point: ResumePoint | None):
        self._context, self._place = run, place_of(run.cfg)
        # With several learners, the others.
        self._learners: LearnerProcesses | FirstLearner | None = None
        self._show: Callable[[str], None] = printing.message
        self._show_below: Callable[[str], None] = printing.message
        self._run_folder, self._record, self._signals = run.folder, run.record, run.signals
        self._point = point
        self._trainer: Trainer
        self._spec: EnvSpec
        self._policy: Any = None
        self._close_note: threading.Timer | None = None
        self._make_loggers: dict[str, Callable[[], Logger]] = {}
        self._loggers: LoggerThreads | None = None
        self._evaluator: Evaluator | None = None
        run.stage = self._place.first_stage

    def run(self, argv: list[str], open_launcher: OpenLauncher | None, point: display.Point | None) -> None:
        """Executes the run, from the snapshot to closing the collector; see `execute`."""
        cfg, record, run_folder = self._cfg, self._record, self._run_folder
        title = display.title_of(cfg, run_folder.path, argv)
        progress = display.Progress(record.statistics, title, None, record.start_s, point)
        has_processes = self._place.is_local and not self._place.is_inline
        self._warm_up(progress, has_processes)
        if self._point is None:
            snapshot.write(cfg, run_folder, argv, time.monotonic() - record.start_s)
        else:
            self._point.load_record(record)
            elapsed_s = time.monotonic() - record.start_s
            saved_config.write_snapshot(cfg, run_folder, argv, self._point.batches, elapsed_s)
            progress.resume(record.start_s, earlier_curve(run_folder.metrics, record.statistics.frames))
        # With on_worker_failure=raise the failure is shown at the end, as the run's error. In a sweep, results of
        # evaluations would hide what differs between the points.
        hidden = ["worker_failed"] * (cfg.collector.on_worker_failure == "raise")
        hidden += ["evaluated"] * (point is not None)
        with closing(EventLog(run_folder, hidden=hidden)) as events:
            events.show = self._show = progress.say
            events.explain = progress.explain
            self._show_below = progress.say_below
            self._context.log = events
            progress.stage = lambda: self._context.stage
            with progress, closing(self), ExitStack() as stack:
                names = ("worker-*.log", "learner-*.log", "inference-server.log", "evaluator.log")
                limited_logs = names if has_processes else names[-1:]
                stack.enter_context(LogLimit(run_folder.logs, limited_logs, cfg.run.max_log_bytes, events))
                launcher = None
                if open_launcher is not None:
                    launcher = stack.enter_context(open_launcher(lambda text: events("jobs", message=text)))
                try:
                    workers = self._prepare(launcher)
                except (ConfigError, LauncherError, SpaceError) as error:
                    record.config_error = error if isinstance(error, ConfigError) else ConfigError(str(error))
                    raise record.config_error from error
                with workers as collector:
                    progress.count_stepping = lambda: collector.pool.stepping_of_started
                    self._context.stage = ""
                    run_folder.forget_replaced()
                    if self._point is not None:
                        self._point.rewind(run_folder)
                    self._collect(collector)

    def _warm_up(self, progress: display.Progress, has_processes: bool) -> None:
        """Starts the fork server of local workers and of the evaluator. For workers, imports torch first, so that they
        share it."""
        if "torch" not in sys.modules:
            progress.imports("torch")
        if has_processes or self._cfg.eval.every_batches is not None:
            from collectx.fork_server import start

            if has_processes:
                shown = counting_imports(lambda name: progress.imports(packages(name)))
                with self._signals.hold(), shown:  # an exception in the imports of torch may abort the process
                    start.preload()
            with self._signals.hold():
                start.warm_up()

    def _prepare(self, launcher: Launcher | None) -> AbstractContextManager[CollectorCore]:
        """Makes the policy and the trainer, and starts the workers without waiting for them. Returns the collector, a
        context manager."""
        with self._signals.hold():  # as in `_warm_up`
            import numpy as np
            import torch

            from collectx import collector, env, policy, trainer
        from collectx.env.infos import declare, shown, undeclared
        from collectx.env.wrappers import note_of
        from collectx.run import logger_threads
        from collectx.trainer.base import replay_overrides

        cfg = self._cfg
        share = share_of(cfg, self._place.gpu_of(self.rank))
        if problems := preflight.trainer_problems(share):
            raise ConfigError(*problems)
        # The trainer computes on the device of the batches.
        device = torch.device(share.devices.storing_device or share.devices.device or "cpu")
        cores.limit_threads(cfg)
        if self.rank == 0:
            snapshot.write_numerics(self._run_folder, device)
        frames = None if self._point is None else self._record.statistics.frames
        self._make_loggers = logger_threads.factories(cfg, self._run_folder, frames, self._context.add_event)
        self._context.stage = "making an env to read its spaces"
        with self._limited(f"making or resetting the trainer's own env ({env_option(cfg.env)})", "start_timeout_s"):
            spec = env.read_spec(cfg.env, policy.is_user_policy(cfg.policy), self._examine)
        has_videos = cfg.eval.video and cfg.eval.every_batches is not None
        if cfg.eval.env or has_videos:
            from collectx.run.after.evaluation import in_envs, with_video

            what = "making the env of evaluations (eval.env)"
            evaluated, _ = in_envs(cfg, spec, self._limited(what, "start_timeout_s"))  # raises for other spaces
            if has_videos:
                with_video(evaluated, self._run_folder.videos)  # raises if it cannot
        self._context.stage = display.WAITING
        self._spec = spec
        if self.rank == 0 and (note := preflight.version_note(cfg)):
            printing.note(note)
        if spec.outside:
            self._context.add_event("observations_outside", message=spec.outside)
        if spec.normalizers:
            self._context.add_event("statistics_in_envs", message=" ".join(map(note_of, spec.normalizers)))
        names = undeclared(getattr(cfg.env, "info_keys", ()))
        # With the declared infos, the evaluator need not step or reset an env to learn their shapes.
        self._context.cfg = cfg = dataclasses.replace(cfg, env=declare(cfg.env, spec.infos))
        share = dataclasses.replace(share, env=cfg.env)
        if names:
            forms = [shown({name: spec.infos[name]}) for name in names]
            self._context.add_event("infos_examined", names=names, declared=f"env.info_keys=[{', '.join(forms)}]")
        launcher = self._meet(launcher)
        # Seeds the generators that a policy's initialisation or a user's trainer draws from. Envs and workers have
        # separate seeds.
        random.seed(cfg.seed)
        np.random.seed(cfg.seed % 2**32)
        torch.manual_seed(cfg.seed)
        self._policy = module = policy.build(cfg.policy, spec, cfg.seed)
        initial = None
        if self._point is None and isinstance(cfg.policy, TrainablePolicyConfig) and cfg.policy.init_from is not None:
            from collectx.run.init_from import InitialWeights

            initial = InitialWeights(cfg.policy, module, cfg.trainer.kind)
            initial.load_policy()
        if self._point is not None:
            self._point.load_policy(module)
        placement = None
        if self._learners is not None:
            self._context.words, placement = self._learners.join(device, spec.num_envs)
        self._trainer = trainer.build(share.trainer, module, spec, cfg.seed, device)
        if initial is not None:
            initial.load_critic(self._trainer)
            if self.rank == 0:
                self._context.add_event("initialized", **initial.write(self._run_folder))
        process.restore_handlers("the policy or the trainer")
        if self._point is not None:
            self._point.load_trainer(self._trainer)
        overrides = replay_overrides(self._trainer, share)
        if overrides:  # workers write batches, which this process does not read
            self._record.digest = None
        order: Sequence[tuple[int, ...]] = ()
        if cfg.collector.order_of is not None:
            whole = cfg.trainer.num_learners, self.rank, cfg.collector.num_workers
            batches = 0 if self._point is None else self._point.batches
            order = recorded_order(cfg.collector.order_of, *whole)[batches:]
        elif self._point is not None:
            order = self._point.order
        recorded = [collector.RecordedBatch(*batch) for batch in order] or None
        resume = None if self._point is None else self._point.collector
        return collector.start_collector(
            share,
            module,
            spec,
            self._context.add_event,
            self._run_folder.logs,
            launcher,
            overrides,
            recorded,
            resume,
            placement,
        )

    def _meet(self, launcher: Launcher | None) -> Launcher | None:
        """Starts the other learners, if there are any. Returns the launcher of the workers; None: that of the place."""
        if self._cfg.trainer.num_learners > 1:
            from collectx.run.learner_processes import LearnerProcesses

            batches = None if self._point is None else self._point.batches
            self._learners = LearnerProcesses(self._context, run_learner, batches, launcher)
            return None  # the workers are processes of this machine
        # A job of `collector=single` has no tasks for workers.
        return None if self._place.is_inline else launcher

    def _examine(self, group: Env) -> None:
        """Says what a user should know about the env that shows its spaces."""
        from collectx.env.gym_factory import common_outputs
        from collectx.run.checkpointer import announce_unsaved

        announce_unsaved(self._cfg, self._context.add_event)(group)
        count = num_processes_of(self._cfg.collector) * self._cfg.env.num_envs
        for path in common_outputs(self._cfg.env, group.user_envs) if count > 1 else ():
            self._context.add_event("outputs_shared", count=count, path=path)

    def _examine_batch(self, batch: Any) -> None:
        """Says if the env left the bounds of its observations, unless its first ones already did, and if a user's
        policy left those of the actions. Built-in ones do so by drawing from a normal distribution."""
        from gymnasium import spaces

        from collectx.collector import WrittenBatch
        from collectx.env.spaces import outside
        from collectx.policy import is_user_policy
        from collectx.trajectories import filled

        if isinstance(batch, WrittenBatch):
            return
        spec, mask = self._spec, filled(batch)
        frames = ... if mask is None else mask
        if not spec.outside:
            seen = {leaf.key: batch[leaf.key][frames] for leaf in spec.inputs}
            if text := outside(spec.observation_space, seen, "the {} in the first batch has"):
                self._context.add_event("observations_outside", message=text)
        if not is_user_policy(self._cfg.policy):
            return
        space, cfg = spec.action_space, self._cfg.env
        advice = "Correct the policy, or clip them there."
        if isinstance(space, spaces.Box) and isinstance(cfg, GymnasiumConfig):
            how = "ClipAction to env.wrappers" if cfg.wrappers else "env.wrappers=[ClipAction]"
            advice = f"If the env needs its bounds, add {how}."
        actions = {leaf.key[-1:]: batch[leaf.key][frames] for leaf in spec.action}
        if text := outside(space, actions, "the policy's first actions have", advice, "action"):
            self._context.add_event("actions_outside", message=text)

    def _limited(self, what: str, option: str) -> AbstractContextManager[None]:
        """Limits the time of a block (`limited`) to that of a collector option; a block that takes longer ends the
        process, with the result of a failed run."""

        def give_up(error: BaseException) -> None:
            self._record.end(error)
            if self.rank == 0:
                _write_result(self._run_folder, self._record, self._signals)
            sys.stdout.flush()
            os._exit(1)

        timeout_s = getattr(self._cfg.collector, option)
        return limited(what, f"collector.{option}", timeout_s, self._show, give_up)

    def _collect(self, collector: CollectorCore) -> None:
        """Trains until the trainer returns or raises, and finishes the run in either case."""
        from collectx.run.batches import RunBatches
        from collectx.run.checkpointer import Checkpointer
        from collectx.run.logger_threads import LoggerThreads

        def say(text: str) -> None:
            self._context.add_event("no_trajectories", message=text)

        collector.join_trajectories(self._cfg.collector, say, "collector.")
        self._loggers = LoggerThreads(self._make_loggers, self._context.add_event, self._cfg.logger.close_timeout_s)
        if self._cfg.eval.every_batches is not None:
            from collectx.run.evaluator import Evaluator

            self._evaluator = Evaluator(self._context, collector.transport.newest_weights)
        checkpointer = Checkpointer(self._context, collector, self._trainer, self._evaluator)
        collection = RunBatches(
            self._context,
            collector,
            checkpointer.before_batch,
            self._loggers,
            self._evaluator,
            self._examine_batch,
        )
        try:
            if self._point is not None:
                self._resume(self._point, collector)
            self._signals.defer(self._cfg.checkpoint.grace_s, self._say_stopping)
            self._record.end(None, self._train(collection))
        except BaseException as error:
            self._record.end(error)
            if self._place.is_inline:
                self._report_before_close(error)
        finally:
            try:
                self._finish(collector, collection, checkpointer)
            finally:
                self._context.stage = "ending the workers"
                if self._place.is_inline:
                    self._close_envs(collector)

    def _train(self, collection: RunBatches) -> str | None:
        """Returns the exit reason of the trainer. One that calls `next` may leave the end of the batches to us."""
        reason = None
        try:
            reason = self._trainer.train(collection)
        except StopIteration:
            if not collection.is_exhausted:
                raise
        except AttributeError as error:
            if error.obj is collection and error.name in ("policy", "spec", "seed", "device"):
                error.add_note(f"{error.name} is an argument of your trainer's constructor")
            raise
        except KeyError as error:
            if found := re.match(r'key "(\w+)" not found in TensorDict with keys', str(error.args[0])):
                self._explain(error, found[1])
            raise
        minutes = self._cfg.run.max_minutes
        return f"{minutes:g} minutes passed (run.max_minutes={minutes:g})" if collection.is_late else reason

    def _explain(self, error: KeyError, key: str) -> None:
        """Adds a note to the error of a trainer that looked for `key` in a batch, if another key was meant."""
        observed = [leaf.key for leaf in self._spec.observation if leaf.key[0] != "info"]
        names = [leaf.key[0] for leaf in self._spec.next_only_leaves if leaf.key[0] in (key, key.removesuffix("s"))]
        if names:
            error.add_note(f'what a step returns is below "next", as in TorchRL: batch["next", "{names[0]}"]')
        elif key == "observation" and (key,) not in observed:
            parts = " and ".join(f"batch{[*path]}" for path in observed)
            error.add_note(f"the env's observation has these parts: {parts}")

    def _resume(self, point: ResumePoint, collector: CollectorCore) -> None:
        reasons = collector.load(point.collector, self._cfg.seed)
        if (now := self._cfg.trainer.num_learners) != point.num_learners:
            reasons = dict.fromkeys(reasons, f"trainer.num_learners was {point.num_learners}, and is now {now}")
        if self._evaluator is not None:
            self._evaluator.load(point.state["evaluations"])
        statistics = self._record.statistics
        empty = {"empty_buffers": point.empty_buffers} if point.empty_buffers else {}
        counts = {"batches": statistics.batches, "frames": statistics.frames}
        is_new = point.state["trainer"] is None and isinstance(self._cfg.trainer, CustomTrainerConfig)
        new = {"new_trainer": type(self._trainer).__name__} if is_new else {}
        self._context.add_event("resumed", **counts, new_episodes=reasons, moved=point.moved, **empty, **new)
        point.load_generators()

    def _say_stopping(self) -> None:
        seconds = f"{self._cfg.checkpoint.grace_s:g} s (checkpoint.grace_s)"
        # Without a batch, there is nothing to save.
        has_begun = self._record.statistics.started is not None
        what = f"a checkpoint within {seconds}" if has_begun else f"after the first batch, or {seconds} without one"
        self._show_below(f"stopping: {what}. Ctrl-C again quits now")

    def _finish(self, collector: CollectorCore, collection: RunBatches, checkpointer: Checkpointer) -> None:
        """Writes the last batch's line, a checkpoint unless the run has failed, `checkpoints/final.pt` and `policy.pt`,
        before the workers close. A trainer that a signal interrupted within a batch is not saved. One that raised an
        error after a signal is: the signal has ended its helper processes, such as those of a DataLoader."""
        from collectx.run.weights import write_weights

        error = self._record.error_after_signal
        if self._record.is_interrupted:
            self._context.add_event("interrupted", reason=self._record.reason)
        if error is not None:
            # A DataLoader's handler raises when another of its processes dies.
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            display.log_errors([error], self._run_folder.log("trainer"))
            batch = self._record.statistics.batches - 1 if collection.is_learning else None
            self._context.add_event("failed_after_signal", type=type_name(error), message=text_of(error), batch=batch)
            collection.close()
            if self._context.words.is_alone:
                with suppress(RunStopped):
                    checkpointer.write()
        self._signals.shield()
        if self._record.is_interrupted and collection.is_learning and error is None:
            collection.close()
            self._context.add_event("not_saved", batches=self._record.statistics.batches)
            return
        is_complete = not self._record.errors and not self._record.is_interrupted
        try:
            if is_complete:
                self._context.words.of_first(END)
                self._context.words.is_end = True
                self._say_unpublished(collector)
            if self._evaluator is not None and is_complete:
                self._evaluator.wait()
            collection.close()
            # Several learners have written one before a signal stops them, and cannot do so later.
            if is_complete or (not self._record.errors and self._context.words.is_alone):
                checkpointer.write(wait_for_workers=not self._record.is_interrupted)
        finally:
            if self.rank == 0:
                write_weights(self._run_folder.policy, self._policy, collector.transport.newest_weights())
                checkpointer.write_final(self._run_folder.final_checkpoint)

    def _say_unpublished(self, collector: CollectorCore) -> None:
        """Says that a trainer of the user has published none of the weights that it could train."""
        parameters: Callable[[], Iterable[Any]] = getattr(self._policy, "parameters", tuple)  # a function has none
        can_learn = any(each.requires_grad for each in parameters())
        is_users = isinstance(self._cfg.trainer, CustomTrainerConfig)
        if is_users and can_learn and collector.policy_version == 0 and self._record.statistics.batches > 1:
            self._context.add_event("never_published")

    def _close_envs(self, collector: CollectorCore) -> None:
        """Closes the envs of this process. An env that takes too long ends with the process."""
        try:
            with self._limited("closing the envs", "close_timeout_s"):
                collector.close()
        except TimeoutError as error:
            self._show(display.format_error(error))

    def close(self) -> None:
        """Ends the evaluator and the loggers, after the workers are closed. Blocks until the loggers have written
        everything, at most `logger.close_timeout_s`."""
        if self._learners is not None and (error := self._learners.close()) is not None:
            self._record.end(error)
        if self._evaluator is not None:
            self._evaluator.close()
        if self._loggers is not None:
            self._loggers.close(self._record.status)
        if self._close_note is not None:
            self._close_note.cancel()
            self._close_note.join(_CLOSE_S)  # it may wait for a pipe that no process reads

    def _report_before_close(self, error: BaseException) -> None:
        """Reports the error of a run whose envs are in this process: closing them may block or end the process."""
        text = f"{type_name(error)}: {text_of(error)}\n  (closing the envs is taking more than {_CLOSE_S:g} s)"
        self._close_note = threading.Timer(_CLOSE_S, self._show, [text])
        self._close_note.name, self._close_note.daemon = "collectx-close-note", True
        self._close_note.start()
        with suppress(OSError):
            write_json(self._run_folder.result, self._record.result(self._run_folder.path).as_json())

    @property
    def _cfg(self) -> RunConfig:
        return self._context.cfg


class _Beside(_Execution):
    """The part of another learner than rank 0, which writes the run folder, evaluates and logs."""

    def __init__(self, run: RunContext, point: ResumePoint | None, first: FirstLearner, rank: int):
        super().__init__(run, point)
        self._learners = self._first = first
        self.rank = rank

    def run_beside(self) -> None:
        with closing(self), self._prepare(None) as collector:
            self._collect(collector)

    def _meet(self, launcher: Launcher | None) -> Launcher:
        return self._first.launcher()


def run_learner(cfg: RunConfig, path: Path, rank: int, endpoint: Endpoint) -> None:
    """Runs the learner with this rank, above 0, in a process of its own, with its share of the workers. Rank 0, at the
    endpoint, acts on signals and shows errors. Exits with status 1 if the run failed."""
    from collectx.fork_server import start
    from collectx.run.learner_processes import FirstLearner

    start.reuse_imports()
    start.warm_up()
    run_folder, signals = RunFolder(path), Signals()
    record = ResultBuilder(cfg, signals)
    no_eval = dataclasses.replace(cfg.eval, every_batches=None, env={})
    own = dataclasses.replace(cfg, eval=no_eval, logger=LoggerConfig())
    run = RunContext(own, run_folder, signals, record)
    first = FirstLearner(run, rank, endpoint)
    try:
        point = None if first.batches is None else ResumePoint(run_folder, cfg, rank, first.batches)
        if point is not None:
            point.load_record(record)
        _Beside(run, point, first, rank).run_beside()
    except BaseException as error:
        record.end(error)
    display.log_errors(record.errors, run_folder.log(f"learner-{rank}"))
    if record.errors:
        sys.exit(1)
    first.tell_end()
