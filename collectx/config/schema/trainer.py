"""Options of the group `trainer`."""

# ruff: noqa: RUF009, the calls in defaults make a `field`
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from collectx.config.schema.fields import Section, like, option, required

# The formats of data sets, and the packages that each needs.
DATA_PACKAGES: dict[str, tuple[str, ...]] = {
    "memmap": (),
    "parquet": ("pyarrow",),
    "minari": ("pyarrow", "minari"),
    "lerobot": ("pyarrow",),
}

# A run reports the mean return of this many finished episodes, the last ones.
RETURN_WINDOW = 100


@dataclass(kw_only=True)
class TrainerConfig(Section):
    """Options of every trainer."""

    kind: str = required("The kind of trainer.", kept=True)
    digest: bool | None = option(
        False,
        """`true`: hash every delivered batch, so that `collectx reproduce` can compare. This reads each batch once, and
        async workers no longer write to the trainer's replay buffer themselves. `null`: like `true`, unless workers
        write to the replay buffer.""",
    )
    num_learners: int = option(
        1,
        """How many processes learn. Each collects with its share of the workers; the built-in trainers average their
        gradients. num_workers and frames_per_batch count the whole run, and must be multiples of this number.""",
        minimum=1,
    )
    learner_timeout_s: float = option(
        600.0,
        """Maximum seconds, above 0, for which a learner waits for another one: for its batch, its gradients, or a
        checkpoint. A learner that dies ends the run at once. No effect with num_learners=1.""",
        above=0,
        without_effect=True,
    )


@dataclass(kw_only=True)
class LearningTrainerConfig(TrainerConfig):
    """Options of the built-in trainers that learn."""

    digest: bool | None = like(TrainerConfig, "digest", default=True)
    learning_rate: float = option(0.001, "Initial learning rate of Adam, above 0.", above=0, finite=True)
    adam_eps: float = option(
        1e-05,
        """Epsilon in Adam's denominator, above 0. With a large value, such as 1e-3, the first large gradient after many
        small ones moves the weights less.""",
        above=0,
        finite=True,
    )
    anneal: bool = option(
        True,
        """`true`: the learning rate decreases linearly to 0 at collector.total_frames, so the last batch is learned
        with rate 0. No effect on a run without a limit.""",
    )
    gamma: float = option(0.98, "Discount factor per frame, 0 to 1.", minimum=0, maximum=1)
    max_grad_norm: float | None = option(
        0.5, "Maximum norm of the gradients; larger ones are scaled down. `null`: no maximum.", above=0
    )
    target_return: float | None = option(
        None,
        "End the run when the mean return of the last 100 episodes reaches this value. `null`: do not end early.",
    )
    check_finite: bool = option(
        True,
        """`true`: the run fails at the first loss or weight that is not finite. `false`: training continues; with
        collector.check_finite=false, also with such weights.""",
    )


@dataclass(kw_only=True)
class ActorCriticTrainerConfig(LearningTrainerConfig):
    """Options of `ppo` and `impala`."""

    entropy_coeff: float = option(0.01, "Weight of the entropy bonus, at least 0.", minimum=0, finite=True)
    critic_coeff: float = option(0.5, "Weight of the critic's loss, at least 0.", minimum=0, finite=True)
    normalize_rewards: bool = option(
        False,
        """`true`: learn from rewards divided by the standard deviation of the discounted returns so far. Batches and
        metrics contain the env's rewards.""",
        kept=True,
    )


@dataclass(kw_only=True)
class PpoTrainerConfig(ActorCriticTrainerConfig):
    learning_rate: float = like(LearningTrainerConfig, "learning_rate", default=2e-3)
    entropy_coeff: float = like(ActorCriticTrainerConfig, "entropy_coeff", default=0.0)
    gae_lambda: float = option(
        0.8, "GAE's lambda, 0 (one-step advantages) to 1 (Monte Carlo advantages).", minimum=0, maximum=1
    )
    num_epochs: int = option(5, "Epochs per batch.", minimum=1)
    minibatch_size: int = option(
        256, "Approximate frames per gradient step: each batch is split into equal parts of about this size.", minimum=1
    )
    clip_epsilon: float = option(0.2, "Clipping range of the probability ratio around 1.", above=0)
    normalize_advantage: bool = option(
        True, "`true`: normalise the advantages of each minibatch to mean 0 and standard deviation 1."
    )


@dataclass(kw_only=True)
class ImpalaTrainerConfig(ActorCriticTrainerConfig):
    rho_clip: float = option(
        1.0, "V-trace: upper limit of rho, the importance weight of a temporal difference.", above=0
    )
    c_clip: float = option(
        1.0, "V-trace: upper limit of c, the importance weight that propagates corrections back in time.", above=0
    )


@dataclass(kw_only=True)
class OffPolicyTrainerConfig(LearningTrainerConfig):
    """Options of `dqn` and `sac`."""

    digest: bool | None = like(TrainerConfig, "digest", default=None)
    gamma: float = like(LearningTrainerConfig, "gamma", default=0.99)
    num_steps: int = option(
        1,
        """The n of the n-step return, at least 1. Returns at the end of an episode, or of an env's frames in a batch,
        use fewer steps.""",
        minimum=1,
    )
    buffer_frames: int = option(
        50000, "Capacity of the replay buffer in frames; new frames overwrite the oldest.", minimum=1
    )
    warmup_frames: int = option(1000, "Frames collected before the first gradient step.", minimum=0)
    batch_size: int = option(64, "Frames per gradient step.", minimum=1)
    updates_per_frame: float = option(0.25, "Gradient steps per collected frame.", above=0, finite=True)
    target_rate: float = option(
        0.02,
        "Rate of the target network's soft update at each gradient step, 0 to 1. 0: no update. 1: copy the policy.",
        minimum=0,
        maximum=1,
    )


@dataclass(kw_only=True)
class SacTrainerConfig(OffPolicyTrainerConfig):
    learning_rate: float = like(
        LearningTrainerConfig,
        "learning_rate",
        "Initial learning rate of Adam, for actor, critics and entropy_coeff.",
        3e-4,
    )
    adam_eps: float = like(LearningTrainerConfig, "adam_eps", default=1e-8)
    anneal: bool = like(LearningTrainerConfig, "anneal", default=False)
    max_grad_norm: float | None = like(LearningTrainerConfig, "max_grad_norm", default=None)
    buffer_frames: int = like(OffPolicyTrainerConfig, "buffer_frames", default=1_000_000)
    warmup_frames: int = like(
        OffPolicyTrainerConfig,
        "warmup_frames",
        """Frames collected before the first gradient step. Their actions are random if collector.init_random_frames
        says so.""",
        5000,
    )
    batch_size: int = like(OffPolicyTrainerConfig, "batch_size", default=256)
    updates_per_frame: float = like(OffPolicyTrainerConfig, "updates_per_frame", default=1.0)
    target_rate: float = like(
        OffPolicyTrainerConfig,
        "target_rate",
        """Rate of the target critics' soft update at each gradient step (tau), 0 to 1. 0: no update. 1: copy the
        critics.""",
        0.005,
    )
    entropy_coeff: float | None = option(
        None,
        """Weight of the entropy (alpha), above 0. `null`: it begins at 1, and is learned so that the entropy approaches
        target_entropy.""",
        above=0,
        finite=True,
    )
    target_entropy: float | None = option(
        None,
        """Entropy of the actions, scaled to [-1, 1], at which a learned entropy_coeff aims. `null`: minus the number of
        action dimensions. No effect with a fixed entropy_coeff.""",
        finite=True,
    )


@dataclass(kw_only=True)
class DqnTrainerConfig(OffPolicyTrainerConfig):
    max_grad_norm: float | None = like(LearningTrainerConfig, "max_grad_norm", default=10.0)
    num_steps: int = like(
        OffPolicyTrainerConfig,
        "num_steps",
        """The n of the n-step return, at least 1. 1: one-step Q-learning. Returns at the end of an episode, or of an
        env's frames in a batch, use fewer steps.""",
        10,
    )
    epsilon_start: float = option(
        1.0, "Initial probability of a random action, 0 to 1; it decreases linearly.", minimum=0, maximum=1
    )
    epsilon_end: float = option(
        0.01, "Probability of a random action from epsilon_frames on, 0 to 1.", minimum=0, maximum=1
    )
    epsilon_frames: int = option(8000, "Frames over which the probability decreases.", minimum=0)
    priority_alpha: float | None = option(
        0.6,
        "Sample frames in proportion to (temporal-difference error)**priority_alpha. `null`: uniformly.",
        minimum=0,
        finite=True,
    )
    priority_beta: float = option(
        0.4,
        """Exponent of the importance weights, from 0 (no correction of sampling bias) to 1 (full correction). No effect
        on uniform sampling.""",
        minimum=0,
        finite=True,
    )


@dataclass(kw_only=True)
class RecordTrainerConfig(TrainerConfig):
    format: str = option(
        "memmap",
        """memmap: memory-mapped TensorDicts. parquet: tables. minari: a data set of the library minari. lerobot:
        LeRobot's layout v3.0, without images. All but memmap need `pip install 'collectx[record]'`.""",
        choices=tuple(DATA_PACKAGES),
        kept=True,
    )
    dir: str | None = option(
        None,
        """Folder of the data set. Several runs may record to it: at the same time with memmap and parquet, one after
        another with minari and lerobot. `null`: `data` in the run folder.""",
        kept=True,
    )
    flush_every_frames: int = option(
        10000,
        """Write finished episodes whenever they contain this many frames, and also before each checkpoint and at the
        end of the run. If unfinished episodes contain more, the long ones move from memory to files there.""",
        minimum=1,
    )
    partial_episodes: bool = option(
        False,
        """What to do with unfinished episodes at the end of the run. `true`: record them up to their last frame.
        `false`: drop them.""",
    )
    fps: int = option(
        30,
        "Frames per second of format=lerobot: frame i of an episode has the time i / fps. No effect on other formats.",
        minimum=1,
    )
    task: str = option("", "Description of the task in words, for format=lerobot. No effect on other formats.")


@dataclass(kw_only=True)
class CustomTrainerConfig(TrainerConfig):
    digest: bool | None = like(TrainerConfig, "digest", default=None)
    target: str = required(
        """`module:Class` with train(collection). It is called with kwargs, and with policy, spec, seed and device if it
        takes parameters of these names.""",
        kept=True,
    )
    kwargs: dict[str, Any] = option({}, "Keyword arguments of the target.")
