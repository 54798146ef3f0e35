"""Rules about envs and batches."""

from __future__ import annotations

from collections.abc import Iterator

from collectx.config.derived import acts_in_fixed_order, is_device, is_elastic, rows_per_env, why_not_recorded
from collectx.config.problem import Conflict, Missing, Problem, opt, use
from collectx.config.schema.collector import ServerInferenceConfig
from collectx.config.schema.env import GymEnvConfig, GymVectorEnvConfig
from collectx.config.schema.run import RunConfig
from collectx.place import place_of

# A fork passes at most 256 descriptors to a process, and the inference server needs a pipe to each worker.
MAX_SERVED_WORKERS = 200


def frames_per_batch(cfg: RunConfig) -> Iterator[Problem]:
    """Every env contributes the same number of steps to a batch."""
    frames, unit = cfg.collector.frames_per_batch, cfg.env.num_envs
    product = opt(f"env.num_envs={unit}")
    if (inner := rows_per_env(cfg.collector)) > 1:
        unit, product = inner * unit, f"{opt(f'collector.num_workers_per_collector={inner}')} x {product}"
    if cfg.collector.schedule == "sync":
        workers = cfg.collector.num_workers
        unit, product = workers * unit, f"{opt(f'collector.num_workers={workers}')} x {product}"
    if frames % unit:
        below = frames // unit * unit
        yield Problem(
            "collector.frames_per_batch",
            f"is not a multiple of {product} ({frames} / {unit} = {frames / unit:.2f})",
            frames,
            use(*(f"collector.frames_per_batch={each}" for each in (below, below + unit) if each)),
        )


def resets(cfg: RunConfig) -> Iterator[Problem]:
    """See `slow_resets`. An env that chooses this mode itself is checked when it is made."""
    if isinstance(cfg.env, GymVectorEnvConfig) and cfg.env.autoreset_mode == "next_step":
        yield from slow_resets(cfg, is_made=False)


def slow_resets(cfg: RunConfig, is_made: bool = True) -> Iterator[Problem]:
    """Envs that spend a step on a reset are not reset before their episodes end, and batches may begin with frames of
    earlier ones. `is_made` says whether the env was made with this mode, or `env.autoreset_mode` names it."""
    collector, mode = cfg.collector, "autoreset_mode=next_step" if is_made else opt("env.autoreset_mode=next_step")

    def advice(*others: str) -> str:
        if is_made:
            return (
                ", or use ".join(["make the env with the autoreset_mode disabled or same_step", *map(opt, others)])
                + "."
            )
        return use("env.autoreset_mode=disabled", "env.autoreset_mode=same_step", *others)

    for name in ("max_frames_per_traj", "reset_at_each_iter"):
        if value := getattr(collector, name, None):
            rule = f"with {mode}, an env is only reset when its episode has ended"
            yield Conflict(f"collector.{name}", rule, value, advice())
    for name in ("max_policy_lag", "preemptive_threshold"):
        if (value := getattr(collector, name, None)) is not None:
            rule = f"with {mode}, a batch may begin with frames of an earlier batch"
            yield Conflict(f"collector.{name}", rule, value, advice(f"collector.{name}=null"))
    if isinstance(cfg.inference, ServerInferenceConfig):
        rule = f"with {mode}, the server would act before the place of a frame in the batch is known"
        yield Conflict("inference=server", rule, advice=advice("inference=local"))


def gym_envs(cfg: RunConfig, path: str = "env") -> Iterator[Problem]:
    """A Gymnasium env is named once, and wrapped only where single envs are made. `path` is the name of its options."""
    env, env_id = cfg.env, f"{path}.id"
    if not isinstance(env, GymEnvConfig | GymVectorEnvConfig):
        return
    if env.id == "":
        yield Problem(env_id, "has no value", advice=f"add an id, such as {opt(f'{env_id}=CartPole-v1')}.")
    if env.id is None and env.entry_point is None:
        own = opt(f"{path}.entry_point=MODULE:NAME")
        advice = f"add a Gymnasium id, such as {opt(f'{env_id}=CartPole-v1')}, or your own env with {own}."
        yield Missing(env_id, advice=advice)
    if env.id is not None and env.entry_point is not None:
        rule = f"cannot be used with {opt(f'{env_id}={env.id}')}, because both name an env"
        advice = f"to use your entry point, add {opt(f'{env_id}=null')}."
        yield Problem(f"{path}.entry_point", rule, env.entry_point, advice)
    if not isinstance(env, GymVectorEnvConfig) or not env.wrappers:
        return
    if env.vectorization_mode == "vector_entry_point" or env.entry_point is not None:
        rule = "wrappers apply to single envs, but this vector env creates all of its envs itself"
        advice = f"use {opt(env_id)} with {opt(f'{path}.vectorization_mode=sync')}, or leave out the wrappers."
        yield Conflict(f"{path}.wrappers", rule, env.wrappers, advice)


def devices(cfg: RunConfig) -> Iterator[Problem]:
    """Devices are CPUs or CUDA devices. The env's device is checked when the env is made."""
    for name, value in vars(cfg.devices).items():
        if value is not None and not is_device(value):
            yield Problem(
                f"devices.{name}", "is not a device", value, f"use devices.{name}=cpu, cuda, or cuda:N for GPU N."
            )


def single_collector(cfg: RunConfig) -> Iterator[Problem]:
    """`collector=single` is one worker."""
    if not cfg.collector.has_workers and cfg.collector.num_workers != 1:
        yield Conflict(
            "collector.num_workers",
            f"{opt('collector=single')} has one worker, which runs in the trainer's process",
            cfg.collector.num_workers,
            use("collector=multi_sync", "collector=multi_async", "collector.num_workers=1"),
        )


def min_workers(cfg: RunConfig) -> Iterator[Problem]:
    """A run does not wait for more workers than it starts."""
    minimum, count = cfg.collector.min_workers, cfg.collector.num_workers
    if minimum is not None and minimum > count:
        rule = f"is more than {opt(f'collector.num_workers={count}')}"
        yield Problem("collector.min_workers", rule, minimum, f"use {opt(f'collector.min_workers={count}')} or fewer.")


def preemption(cfg: RunConfig) -> Iterator[Problem]:
    """Only slow workers on the trainer's machine are told to end their parts."""
    path, threshold = "collector.preemptive_threshold", cfg.collector.preemptive_threshold
    if threshold is None:
        return
    if not cfg.collector.has_workers:
        rule, advice = f"{opt('collector=single')} has only one worker", use("collector=multi_sync", f"{path}=null")
        yield Conflict(path, rule, threshold, advice)
    elif cfg.collector.schedule == "async":
        rule = "an async batch comes from one worker, so it never waits for slow ones"
        yield Conflict(path, rule, threshold, use("collector=multi_sync", f"{path}=null"))
    elif (network := place_of(cfg).network) is not None:
        rule = f"over {opt(f'backend={network}')}, workers cannot be told to end a batch early"
        yield Conflict(
            path, rule, threshold, f"use {opt('collector=multi_sync')} on one machine, or {opt(f'{path}=null')}."
        )


def overlap(cfg: RunConfig) -> Iterator[Problem]:
    """Only a sync collector waits between batches, and the version of an overlapped batch is fixed when it is begun."""
    collector = cfg.collector
    if not collector.overlap:
        return
    rule = advice = ""
    if not collector.has_workers:
        rule, advice = (
            f"{opt('collector=single')} collects in the trainer's process, which cannot learn at the same time",
            use("collector=multi_sync", "collector.overlap=0"),
        )
    elif collector.schedule == "async":
        rule = "async workers already collect while the trainer learns"
        advice = f"use a sync collector, or {opt('collector.overlap=0')}."
    elif collector.refresh == "step":
        rule = f"with {opt('collector.refresh=step')}, workers load new weights within a batch"
        advice = use("collector.refresh=batch", "collector.overlap=0")
    elif collector.preemptive_threshold is not None:
        rule = f"with {opt('collector.preemptive_threshold')}, ending a batch early would also end the next one"
        advice = use("collector.preemptive_threshold=null", "collector.overlap=0")
    elif collector.num_workers_per_collector > 1 and collector.inner == "async":
        rule = f"with {opt('collector.inner=async')}, workers already run ahead of the trainer"
        advice = use("collector.inner=sync", "collector.overlap=0")
    if rule:
        yield Conflict("collector.overlap", rule, collector.overlap, advice)


def recorded_order(cfg: RunConfig) -> Iterator[Problem]:
    """Only async runs have an order to repeat, which they have recorded."""
    folder = cfg.collector.order_of
    if folder is None:
        return
    if cfg.collector.schedule != "async":
        rule = f"the batches of collector={cfg.collector.kind} always come in the same order"
        yield Conflict("collector.order_of", rule, folder, "use collector.order_of=null.")
    elif reason := why_not_recorded(cfg):
        yield Conflict("collector.order_of", f"{reason}.", folder)


def nested_collectors(cfg: RunConfig) -> Iterator[Problem]:
    """A worker that is itself a collector needs a network between it and the trainer."""
    collector, path = cfg.collector, "collector.num_workers_per_collector"
    count = collector.num_workers_per_collector
    if count == 1:
        return
    if collector.refresh == "step":
        rule = f"workers with several processes ({opt(f'{path}={count}')}) only load weights between batches"
        yield Conflict("collector.refresh", rule, "step", use("collector.refresh=batch"))
    if collector.inner == "single":
        advice = use("collector.inner=sync", "collector.inner=async", "collector.num_workers_per_collector=1")
        yield Conflict(path, f"with {opt('collector.inner=single')}, each worker has one process", count, advice)
    if collector.max_policy_lag is not None and collector.inner == "async":
        inner = opt("collector.inner=async")
        rule = f"with {opt(f'{path}={count}')} {inner}, the processes in a worker add a lag of their own"
        advice = use("collector.inner=sync", "collector.max_policy_lag=null")
        yield Conflict("collector.max_policy_lag", rule, collector.max_policy_lag, advice)
    place = place_of(cfg)
    if place.network is None:
        rule = f"with {opt(f'backend={place.backend}')}, a worker is always one process"
        advice = use(f"collector.num_workers={collector.num_workers * count}", "collector=distributed")
        yield Conflict(path, rule, count, advice)


def served_policy(cfg: RunConfig) -> Iterator[Problem]:
    """The inference server finds a policy to call."""
    if isinstance(cfg.inference, ServerInferenceConfig) and cfg.policy.is_random:
        rule = f"{opt('policy=random')} has no network, so there is nothing to serve"
        yield Conflict("inference", rule, cfg.inference.kind, use("inference=local"))


def inference_server(cfg: RunConfig) -> Iterator[Problem]:
    """The inference server reads observations in shared memory."""
    options, collector = cfg.inference, cfg.collector
    if not isinstance(options, ServerInferenceConfig):
        return
    place = place_of(cfg)
    if not place.shares_memory:
        rule = f"with {opt(f'backend={place.backend}')}, workers share no memory with the inference server"
        if place.is_inline:
            rule = "the workers are in the trainer's process, where they act one after another"
        multi = f"collector=multi_{collector.schedule}"
        advice = f"use {opt(multi)} with {opt('launcher=local')}, or {opt('inference=local')}."
        yield Conflict("inference", rule, options.kind, advice)
    if collector.num_workers > MAX_SERVED_WORKERS:
        rule = f"is too many for {opt('inference=server')}, which serves at most {MAX_SERVED_WORKERS} workers"
        advice = f"use fewer workers with a higher {opt('env.num_envs')}, or {opt('inference=local')}."
        yield Problem("collector.num_workers", rule, collector.num_workers, advice)
    if collector.preemptive_threshold is not None:
        rule = f"with {opt('inference=server')}, workers cannot end their part of a batch early"
        advice = use("collector.preemptive_threshold=null", "inference=local")
        yield Conflict("collector.preemptive_threshold", rule, collector.preemptive_threshold, advice)
    if is_elastic(collector):
        rule = f"with {opt('inference=server')}, a run starts only when all workers are ready"
        advice = use(f"collector.min_workers={collector.num_workers}", "inference=local")
        yield Conflict("collector.min_workers", rule, collector.min_workers, advice)
    is_fixed = acts_in_fixed_order(cfg)
    if is_fixed and collector.schedule == "async":
        rule = "async workers do not step in a fixed order"
        yield Conflict(
            "inference.order", rule, options.order, f"use {opt('inference.order=ready')}, or a sync collector."
        )
    if not is_fixed and collector.overlap and collector.schedule == "sync":
        rule = f"with {opt('inference.order=ready')}, one policy call would need two weight versions"
        yield Conflict(
            "collector.overlap", rule, collector.overlap, use("inference.order=fixed", "collector.overlap=0")
        )
    if options.max_batch is not None and options.max_batch < options.min_batch:
        rule, path = f"is below {opt(f'inference.min_batch={options.min_batch}')}", "inference.max_batch"
        advice = f"use {opt(f'{path}={options.min_batch}')} or more, or {opt(f'{path}=null')} for no limit."
        yield Problem(path, rule, options.max_batch, advice)
    if (limit_s := collector.worker_timeout_s) <= options.timeout_s:
        rule = (
            f"must be below {opt(f'collector.worker_timeout_s={limit_s:g}')}: the server may wait that long at every "
            "step, so its workers would count as hung"
        )
        advice = f"use a short time, such as {opt('inference.timeout_s=0.01')}."
        yield Problem("inference.timeout_s", rule, options.timeout_s, advice)
