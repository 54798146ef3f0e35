"""`collectx eval RUN_DIR [overrides] [flags]`: evaluates the policy of a run, with its newest weights.

The composition starts from the saved configuration, as in `collectx reproduce`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import fields, replace
from datetime import datetime

from collectx.cli.arguments import Arguments, subcommand
from collectx.cli.overrides import with_section
from collectx.cli.run import print_changes
from collectx.cli.saved import compose_saved, find_run_folder, working_directory
from collectx.config.interpolation import as_written
from collectx.config.registry import group_from_dict
from collectx.config.schema.env import GymnasiumConfig
from collectx.config.schema.run import EvalOptions, RunConfig
from collectx.errors import ConfigError
from collectx.run.folder import saved_config
from collectx.run.folder.files import JsonLines, read_lines
from collectx.run.folder.layout import RunFolder
from collectx.run.folder.result import Status
from collectx.run.preflight import argument_problems, env_limit
from collectx.run.terminal import printing

_USAGE = """\
collectx eval RUN_DIR [episodes=10] [video=true] [weights=best] [exploration_type=random] [overrides] [--trust]:
evaluate the newest policy of the run in RUN_DIR, in separate envs with separate seeds, and add a line with the results
to RUN_DIR/evaluations.jsonl.

episodes=10 is short for eval.episodes=10, and so on for every option of `eval` (to list them: collectx list eval). To
evaluate in a different env, override it: eval.env.kwargs.gravity=5. video=true saves a video of each episode below
RUN_DIR/videos (pip install 'collectx[video]'). weights=best evaluates the best checkpoint (checkpoint.keep_best).

If RUN_DIR was written on another machine, the command first prints which code the configuration imports. If it belongs
to another user, add --trust.

Exit status: 0 evaluated, 1 failed, 2 wrong configuration or usage."""

# `env=NAME` is the group; the env of the run has the envs of one worker.
_SHORT = {field.name for field in fields(EvalOptions)} - {"env"} | {"env.num_envs"}
_HERE = {"launcher": "inline", "trainer": "meter"}


def _eval(arguments: Arguments) -> int:
    why_no_sweep = "eval evaluates one run. For a sweep, evaluate each of its runs: collectx eval RUN_DIR"
    run_folder, words = find_run_folder(arguments, _USAGE, why_no_sweep)
    saved = saved_config.read_config(run_folder.newest_config)
    overrides = with_section(words, "eval", _SHORT)
    _, cfg = compose_saved(run_folder, saved, overrides, arguments)
    # The trainer and the launcher of the run may not exist here.
    here = {group: group_from_dict(group, {"kind": kind}) for group, kind in _HERE.items()}
    if problems := argument_problems(replace(cfg, **here)):
        raise ConfigError(*problems)
    print_changes(run_folder, cfg)
    import torch

    from collectx.policy.exploration import ExplorationType
    from collectx.run.after import evaluation, trained

    now = datetime.now()
    videos = run_folder.videos / f"{now:%Y-%m-%d_%H-%M-%S-%f}"
    # Where the envs of the run were.
    with contextlib.chdir(run_folder.path) if working_directory(run_folder) else contextlib.nullcontext():
        changed = " ".join(word for word in overrides if word.lstrip("+~").startswith("env"))
        policy, spec, seen = trained.build(cfg, evaluation.check_of_spaces(run_folder, changed), env_limit(cfg))
        if changed:
            printing.note(f"evaluates in another env than the run's: {changed}")
        recording, spec = evaluation.in_envs(cfg, spec, env_limit(cfg))
        if cfg.eval.env:
            printing.note(f"this evaluation uses eval.env={evaluation.shown_changes(cfg)}")
        if cfg.eval.video:
            recording = evaluation.with_video(recording, videos)
        batches = trained.load_weights(run_folder, policy, cfg.eval.weights)
        result = run_folder.read_result() or {}
        # `any` ends at the first batch after an update.
        if result.get("status") == Status.FAILED and not any(
            line.get("version") for line in read_lines(run_folder.metrics)
        ):
            printing.note(
                f"the run failed before it published weights ({result.get('exit_reason')}), so these are its first ones"
            )
        if spec.normalizers:
            recording = _with_normalizers(recording, run_folder, spec.normalizers)
        evaluated = evaluation.evaluate(recording, policy, spec, lambda text: printing.message(f"eval: {text}"))
    how = {
        "time": now.timestamp(),
        "exploration_type": cfg.eval.exploration_type,
        "seed": cfg.eval.seed,
        "weights": cfg.eval.weights,
        "batches": batches,
        "env": as_written(cfg, is_escaped=False)["eval"]["env"],
        "overrides": overrides,
    }
    recorded = sorted(str(path.relative_to(run_folder.path)) for path in videos.glob("*.mp4"))
    with contextlib.closing(JsonLines(run_folder.evaluations)) as lines:
        lines.append({**how, **evaluated.as_json(), "videos": recorded})
    print("return  " + " ".join(f"{value:.6g}" for value in evaluated.returns))
    print("length  " + " ".join(map(str, evaluated.lengths)))
    interval = "" if evaluated.interval is None else " (95% CI {:.6g} to {:.6g})".format(*evaluated.interval)
    count = "1 episode" if len(evaluated.returns) == 1 else f"{len(evaluated.returns)} episodes"
    print(f"mean return {evaluated.mean_return:.6g}{interval} of {count}, exploration_type={cfg.eval.exploration_type}")
    for name, value in evaluated.metrics.items():
        print(f"{name} {value:.6g}")
    loaded = trained.LoadedPolicy(policy, seen, ExplorationType(cfg.eval.exploration_type), torch.device("cpu"))
    for text in loaded.warnings():
        printing.note(text)
    print(f"written to {printing.typed(run_folder.evaluations)}")
    if recorded:
        print(f"videos in {printing.typed(videos)}")
    return 0


def _with_normalizers(cfg: RunConfig, run_folder: RunFolder, names: Sequence[str]) -> RunConfig:
    """Returns the configuration with the run's statistics in normalisers, if found; prints a note."""
    from collectx.env.wrappers import note_of
    from collectx.run.after import evaluation, trained

    found = trained.statistics_of_normalizers(run_folder, cfg.eval.weights)
    found = [each for each in found if each["wrapper"] in names]  # eval.env may leave out others
    if not isinstance(cfg.env, GymnasiumConfig) or {each["wrapper"] for each in found} != set(names):
        for name in names:
            printing.note(note_of(name, of_run=False))
        return cfg
    verb = "uses" if len(names) == 1 else "use"
    printing.note(
        f"{' and '.join(names)} {verb} the statistics that the first env of the first worker had at the "
        f"{cfg.eval.weights} checkpoint. The evaluation does not update them."
    )
    return evaluation.with_normalizers(cfg, found)


main = subcommand("eval", _eval, _USAGE, lists_problems=True)
