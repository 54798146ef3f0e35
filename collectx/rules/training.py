"""Rules about policies, and about what trainers learn from."""

from __future__ import annotations

from collections.abc import Iterator

from collectx.config.derived import rows_per_env
from collectx.config.problem import Conflict, Problem, counted, either
from collectx.config.schema.policy import CnnPolicyConfig, MlpPolicyConfig
from collectx.config.schema.run import OF_EVALUATION, RunConfig
from collectx.config.schema.trainer import LearningTrainerConfig, RecordTrainerConfig
from collectx.place import place_of
from collectx.rules.evaluation_env import evaluated


def learnable_batches(cfg: RunConfig) -> Iterator[Problem]:
    """Trainers that learn find a frame in every place of a batch, and the observation after it."""
    collector, trainer = cfg.collector, cfg.trainer.kind
    if not isinstance(cfg.trainer, LearningTrainerConfig):
        return
    if getattr(collector, "compact_obs", False):
        rule = f"trainer={trainer} needs the next observation of each frame, which this option leaves out"
        yield Conflict(
            "collector.compact_obs",
            rule,
            True,
            "use collector.compact_obs=false, trainer=meter or trainer=custom.",
        )
    threshold, trajectories = collector.preemptive_threshold, collector.trajs_per_batch
    if trajectories is None and threshold is not None:
        yield Problem(
            "collector.preemptive_threshold",
            f"cannot be used with trainer={trainer}, which cannot skip missing frames",
            threshold,
            "use collector.preemptive_threshold=null, or collect complete trajectories with "
            "collector.trajs_per_batch=N collector.traj_format=cat.",
        )
    elif trajectories is not None and collector.traj_format == "padded":
        path, advice = "collector.trajs_per_batch", "use collector.traj_format=cat."
        yield Conflict(path, f"trainer={trainer} cannot train on padded trajectories", trajectories, advice)


def several_learners(cfg: RunConfig) -> Iterator[Problem]:
    """Each learner has equal shares of the workers and the frames, and takes as many batches as the others."""
    num_learners, collector, place = cfg.trainer.num_learners, cfg.collector, place_of(cfg)
    path, one = "trainer.num_learners", "trainer.num_learners=1"
    if num_learners == 1:
        return
    if place.is_inline or not collector.has_workers:
        rule = "several learners need workers of their own, but the trainer's process steps the envs"
        yield Conflict(path, rule, num_learners, f"use collector=multi_sync with launcher=local, or {one}.")
        return
    if not place.is_local or place.has_ranks:
        rule = "with several learners, the workers of each must be processes of its machine"
        what = "backend" if place.is_local else "launcher"
        advice = f"use launcher=local, slurm or ray with backend=auto, or {one}."
        yield Conflict(what, rule, getattr(cfg, what).kind, advice)
    if isinstance(cfg.trainer, RecordTrainerConfig):
        yield Conflict("trainer", "it writes one data set, which is one learner's", "record", f"use {one}.")
    is_async, inner = collector.schedule == "async", rows_per_env(collector)
    units = {"num_workers": 1, "frames_per_batch": inner * cfg.env.num_envs if is_async else 1}
    shared = [getattr(collector, name) // each for name, each in units.items()]
    fitting = [each for each in range(1, collector.num_workers + 1) if not any(count % each for count in shared)]
    for name, each in units.items():
        value, multiple = getattr(collector, name), each * num_learners
        if value > 0 and value % multiple:
            envs = f" x {inner} processes" * (inner > 1) + f" x env.num_envs={cfg.env.num_envs}" if each > 1 else ""
            below = value // multiple * multiple
            advice = either(f"collector.{name}={near}" for near in (below, below + multiple) if near)
            if cfg.run.resume == "auto":
                advice = f"{either(f'{path}={near}' for near in fitting[-2:])}: collector.{name} is fixed on resume"
            rule = f"is not a multiple of {path}={num_learners}{envs} ({value} / {multiple} = {value / multiple:.2f})"
            yield Problem(f"collector.{name}", rule, value, f"use {advice}.")
    uneven = {
        "trajs_per_batch": "learners would need different numbers of frames for a batch of trajectories",
        "preemptive_threshold": "learners would collect different numbers of frames",
    }
    for name, rule in uneven.items():
        if (value := getattr(collector, name)) is not None:
            yield Conflict(f"collector.{name}", f"with {path}, {rule}", value, f"use collector.{name}=null, or {one}.")
    if collector.on_worker_failure == "drop":
        rule = "with several learners, one that has lost workers would collect fewer frames than the others"
        advice = f"use collector.on_worker_failure=restart, or {one}."
        yield Conflict("collector.on_worker_failure", rule, "drop", advice)


def recorded_episodes(cfg: RunConfig) -> Iterator[Problem]:
    """The trainer itself joins recorded frames to complete episodes, and needs their last observation."""
    if not isinstance(cfg.trainer, RecordTrainerConfig):
        return
    collector = cfg.collector
    reasons = {
        "compact_obs": ", but this option leaves out the last observation of each",
        "reset_at_each_iter": ", but this option cuts them at the end of each batch",
        "trajs_per_batch": " and joins their frames itself",
    }
    for name, why in reasons.items():
        if value := getattr(collector, name, None):
            advice = f"use collector.{name}={'null' if name == 'trajs_per_batch' else 'false'}."
            yield Conflict(f"collector.{name}", f"trainer=record writes whole episodes{why}", value, advice)


def best_checkpoint(cfg: RunConfig) -> Iterator[Problem]:
    """The metric that ranks checkpoints is one of the run, or of its evaluations."""
    name = cfg.checkpoint.keep_best or ""
    prefix = OF_EVALUATION if name.startswith(OF_EVALUATION) else ""
    if prefix and cfg.eval.every_batches is None:
        yield Problem("checkpoint.keep_best", "needs evaluations during the run", name, "add eval.every_batches=N.")
        return
    own = getattr((evaluated(cfg) if prefix else cfg).env, "metrics", ())
    metrics = [f"{prefix}{each}" for each in ("mean_return", *own)]
    if name and name not in metrics:
        rule = f"is not a metric of this run. Its metrics are {' and '.join(metrics)}"
        if len(metrics) == 1:
            rule = "is not a metric of this run"
        entry = name.removeprefix(prefix)
        advice = f"use checkpoint.keep_best={metrics[0]}. If the env returns '{entry}' in its info, "
        advice += f"add env.metrics=[{','.join([*own, entry])}]."
        yield Problem("checkpoint.keep_best", rule, name, advice)


def convolutions(cfg: RunConfig) -> Iterator[Problem]:
    """There is at least one convolution, and every list contains one entry per convolution."""
    if isinstance(cfg.policy, CnnPolicyConfig):
        values = {name: getattr(cfg.policy, name) for name in ("channels", "kernel_sizes", "strides")}
        lists = {name: len(value or ()) for name, value in values.items()}
        if len(set(lists.values())) > 1 or [] in values.values():
            said = {
                name: "is null" if value is None else f"has {counted(len(value), 'entry', 'entries')}"
                for name, value in values.items()
            }
            advice = "give each of the three lists one entry per convolution"
            rule = ", ".join([said.pop("channels"), *(f"policy.{name} {text}" for name, text in said.items())])
            if not any(lists.values()):
                rule = "is empty, as are policy.kernel_sizes and policy.strides, but a CNN needs a convolution"
                advice += ", such as policy.channels=[32] policy.kernel_sizes=[3] policy.strides=[1]"
            yield Problem("policy.channels", rule, advice=f"{advice}.")


def trainable_policy(cfg: RunConfig) -> Iterator[Problem]:
    """PPO and IMPALA learn an action distribution, DQN learns action values, SAC a squashed Gaussian."""
    policy, trainer = cfg.policy.kind, cfg.trainer.kind
    # As in q_cnn and squashed_mlp; without a prefix, the outputs are probabilities of actions.
    outputs, _, network = policy.rpartition("_")
    is_built_in = isinstance(cfg.policy, MlpPolicyConfig | CnnPolicyConfig)
    if not is_built_in:
        network = "mlp"
    if cfg.policy.is_random and trainer in ("ppo", "impala"):
        rule = f"has no weights, so trainer={trainer} has nothing to train"
        yield Problem("policy", rule, policy, "use policy=mlp, or trainer=meter.")
    exploration = cfg.collector.exploration_type
    if exploration != "random" and is_built_in and not outputs and trainer in ("ppo", "impala"):
        rule = f"trainer={trainer} needs log-probabilities, which only sampled actions have"
        yield Conflict("collector.exploration_type", rule, exploration, "use collector.exploration_type=random.")
    if trainer == "dqn" and (cfg.policy.is_random or (is_built_in and outputs != "q")):
        yield Conflict(
            "policy",
            "trainer=dqn needs a policy that computes action values",
            policy,
            f"use policy=q_{network}, and an env with discrete actions.",
        )
    if trainer == "sac" and policy != "custom" and outputs != "squashed":
        yield Conflict(
            "policy",
            "trainer=sac needs a policy of squashed Gaussians",
            policy,
            f"use policy=squashed_{network.replace('cnn', 'multi')}, with an env whose actions are a Box.",
        )
    if trainer in ("ppo", "impala") and is_built_in and outputs:
        rule = f"trainer={trainer} needs a policy that computes action probabilities"
        other = "dqn, if the env's actions are discrete" if outputs == "q" else "sac, if the env's actions are a Box"
        yield Conflict("policy", rule, policy, f"use policy={network}, or trainer={other}.")
