"""Objects of user code. YAML names them by import paths (`resolve`). Python passes env factories, policies, hooks and
collectors themselves: they are pickled by value (cloudpickle) when a worker starts, and never sent over a network.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import io
import os
import pickle
import pkgutil
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any, Generic, TypeVar

from collectx import progress
from collectx.config.interpolation import escaped
from collectx.config.problem import YAML, did_you_mean, either, nearest
from collectx.config.schema.env import EnvConfig
from collectx.config.schema.policy import PolicyConfig
from collectx.errors import ConfigError, frames_of_user, summary_of, text_of

# The extras of collectx, by packages that users' code may need.
_EXTRAS = {"mujoco": "mujoco", "opencv": "atari", "minigrid": "minigrid", "minari": "record", "torchrl": "torchrl"}
# Names joined by dots, of which a colon may replace one.
_IMPORT_PATH = re.compile(r"NAME(\.NAME)*[.:]NAME(\.NAME)*".replace("NAME", r"[^\W\d]\w*"))


# What to do about a module that this process cannot import.
missing_advice = ". Is it installed, or on PYTHONPATH?"


def resolve(name: Any, where: str) -> Callable[..., Any]:
    """Returns the callable at the import path `name` ("package.module:object", or with dots only), or `name` if
    callable. Raises `ConfigError` if there is no such callable; the message names the option `where`."""
    if callable(name):
        return name
    stem = name.removesuffix(".py") if isinstance(name, str) else ""
    if stem.isidentifier() and find_spec(stem) is not None:
        members = vars(import_module(stem)).items()
        own = [key for key, each in members if key[0] != "_" and getattr(each, "__module__", "") == stem]
        choices = either(f"{stem}:{key}" for key in own or ["NAME"])
        raise ConfigError(f"{where}={name} is a module. Name a class or function in it: {choices}.")
    is_path = isinstance(name, str) and _IMPORT_PATH.fullmatch(name)
    # As in ./user/envs.py:Room, a file.
    file, colon, attribute = name.partition(":") if isinstance(name, str) else ("", "", "")
    if colon and (not is_path or file.endswith(".py")):
        meant = f"{os.path.normpath(file).removesuffix('.py').replace(os.sep, '.')}:{attribute}"
        if meant != name and _IMPORT_PATH.fullmatch(meant):
            raise ConfigError(f"{where}={name} is a file, not an import path. Write it as {meant}.")
    if not is_path:
        raise ConfigError(f"{where}={name} is not an import path. Write it as package.module:Name.")
    path, (module_name, _, attribute) = name, name.rpartition(".")
    # With a colon, an error inside the module is not mistaken for a missing module.
    with contextlib.suppress(ModuleNotFoundError):
        if ":" not in name and find_spec(module_name) is not None:
            path = f"{module_name}:{attribute}"
    try:
        target = pkgutil.resolve_name(path)
    except (SyntaxError, SystemExit) as error:
        raise ConfigError(f"{where}={name} cannot be imported: {where_raised(error)}") from error
    except (ImportError, AttributeError) as error:
        module = getattr(error, "obj", None)
        # The module may have another name than its import path, as os.path does.
        named = path.partition(":")[0]
        if isinstance(error, AttributeError) and isinstance(module, ModuleType) and sys.modules.get(named) is module:
            names = [key for key, each in vars(module).items() if key[0] != "_" and callable(each)]
            hint = did_you_mean(str(error.name), names, f"{named}:", cutoff=0.7)
            raise ConfigError(f"{where}={name} does not exist: {named} has no {error.name}{hint}") from error
        if frames_of_user(error):
            raise ConfigError(f"{where}={name} cannot be imported: {where_raised(error)}") from error
        first, advice = re.split("[.:]", name, maxsplit=1)[0], extra_advice(error)
        is_missing = isinstance(error, ModuleNotFoundError) and error.name == first
        if is_missing and (near := nearest(first, _modules([os.getcwd()]))) is not None:
            advice = f". Did you mean {where}={near}{name.removeprefix(first)}?"
        if found := re.search(r"; '(.+)' is not a package$", str(error)):
            rule = f"{found[1]} is a module, not a package, so it has no submodules"
            raise ConfigError(f"{where}={name} cannot be imported: {rule}. Write it as {found[1]}:NAME.") from error
        raise ConfigError(f"{where}={name} cannot be imported: {error}{advice}") from error
    progress.one_more(progress.IMPORTS)
    if not callable(target):
        raise ConfigError(f"{where}={name} is a value of type {type(target).__name__}. Name a class or a function.")
    return target


# Modules that users' code may import by their old names.
_RENAMED = {"gym": "gymnasium"}


def _modules(path: Sequence[str] | None) -> list[str]:
    """Returns the names of the modules and packages in these folders; None: of all that can be imported."""
    return [each.name for each in pkgutil.iter_modules(path)]


def named_call(item: Any) -> tuple[Any, Any]:
    """Returns the callable that an entry of `env.wrappers` names, and its keyword arguments. `item` is a name, `{name:
    {argument: value}}`, `{_target_: name, argument: value}`, or a callable. A name without a dot or colon means a class
    of gymnasium.wrappers. `_partial_: true` is accepted and has no effect: every wrapper is called with an env."""
    name, arguments = item, None
    if isinstance(item, Mapping):
        name, arguments = next(iter(item.items()), ("", None))
        if "_target_" in item:
            ours = ("_target_", "_partial_", "_convert_")
            name, arguments = item["_target_"], {key: value for key, value in item.items() if key not in ours}
    if isinstance(name, str) and name.isidentifier():
        name = f"gymnasium.wrappers:{name}"
    return name, arguments or {}


# What hydra.utils.instantiate reads in a mapping with `_target_`, besides the arguments.
HYDRA_KEYS = ("_target_", "_args_", "_partial_", "_convert_", "_recursive_")


def named_objects(value: Any, where: str) -> Iterator[tuple[str, dict[Any, Any]]]:
    """Yields each mapping with `_target_` in the arguments of a configuration, and the option that contains it."""
    if isinstance(value, dict):
        if "_target_" in value:
            yield where, value
        for key, each in value.items() if value.get("_recursive_", True) else ():
            yield from named_objects(each, f"{where}.{key}")
    elif isinstance(value, list):
        for i, each in enumerate(value):
            yield from named_objects(each, f"{where}[{i}]")


def with_objects(value: Any, where: str) -> Any:
    """Returns arguments of a configuration in which each mapping with `_target_` is what `hydra.utils.instantiate`
    makes of it. Raises `ConfigError` if a target does not exist, or lacks an argument."""
    if isinstance(value, dict) and "_target_" in value:
        return _instantiated(value, where)
    if isinstance(value, dict):
        return {key: with_objects(each, f"{where}.{key}") for key, each in value.items()}
    return [with_objects(each, f"{where}[{i}]") for i, each in enumerate(value)] if isinstance(value, list) else value


def _instantiated(node: dict[Any, Any], where: str) -> Any:
    from hydra.errors import InstantiationException
    from hydra.utils import instantiate

    node = copy.deepcopy(node)
    for path, each in named_objects(node, where):
        resolve(each["_target_"], f"{path}._target_")
        each["_target_"] = each["_target_"].replace(":", ".")
    try:
        return instantiate(escaped(node))
    except InstantiationException as error:
        cause = error.__cause__
        if isinstance(cause, TypeError) and "_args_" not in node:
            raise_missing(cause, resolve(node["_target_"], where), node, where)
        if cause is None:
            raise ConfigError(f"{where} cannot be built: {error}") from error
        cause.add_note(f"raised while {where} was built from _target_={node['_target_']}")
        raise cause from None


def arguments_of(target: Callable[..., Any], kwargs: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Returns keyword arguments of a configuration as `target` takes them: with the objects that they name, and with a
    tuple for a list where the annotation or the default of the parameter is one."""
    built = {str(key): with_objects(value, f"{where}.{key}") for key, value in kwargs.items()}
    parameters: Mapping[str, inspect.Parameter] = {}
    with contextlib.suppress(TypeError, ValueError):  # a builtin may have no signature
        parameters = inspect.signature(target).parameters
    return {
        name: as_tuple(value) if name in parameters and _is_tuple(parameters[name]) else value
        for name, value in built.items()
    }


def _is_tuple(parameter: inspect.Parameter) -> bool:
    annotation = "" if parameter.annotation is parameter.empty else str(parameter.annotation)
    takes_lists = re.search(r"\b(list|sequence|iterable|collection|any)\b", annotation, re.IGNORECASE)
    is_named = re.search(r"\btuple\b", annotation, re.IGNORECASE) is not None
    return not takes_lists and (is_named or isinstance(parameter.default, tuple))


def as_tuple(value: Any) -> Any:
    """Returns a list, with the lists in it, as a tuple."""
    return tuple(map(as_tuple, value)) if isinstance(value, list) else value


def call_with_tuples(target: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Returns `target(*args, **kwargs)`. If the call fails with a message about a tuple, tries again with
    tuples in place of lists, which YAML writes alike."""
    try:
        return target(*args, **kwargs)
    except (TypeError, ValueError, AssertionError) as error:
        has_list = any(isinstance(value, list) for value in kwargs.values())
        if not has_list or "tuple" not in str(error).lower():
            raise
        return target(*args, **{name: as_tuple(value) for name, value in kwargs.items()})


def tuple_advice(kwargs: Mapping[str, Any]) -> str:
    """Returns how to write a tuple in place of the first list of a call that failed; "" without a list."""
    name, value = next(((name, value) for name, value in kwargs.items() if isinstance(value, list)), ("", None))
    written = f"{name}: {{_target_: builtins.tuple, _args_: [{YAML.show(value)}]}}"
    return f" If {name} must be a tuple, write {written}." if name else ""


def where_raised(error: BaseException) -> str:
    """Returns the file, line and text of an error in a user's module: a syntax error, a failed import, a missing
    attribute, or a call that ends the process."""
    if isinstance(error, ImportError | AttributeError):
        place, advice = frames_of_user(error)[-1], extra_advice(error)
        near = _RENAMED.get(str(error.name)) or nearest(str(error.name), _modules(None), 0.8)
        if near and advice == missing_advice:
            advice = f". Did you mean {near}?"
        return f"{type(error).__name__} in {place.filename}, line {place.lineno}: {text_of(error)}{advice}"
    if isinstance(error, SystemExit):
        *_, call = traceback.extract_tb(error.__traceback__)
        return f"SystemExit in {call.filename}, line {call.lineno}, in `{call.line}`"
    assert isinstance(error, SyntaxError)
    text = (error.text or "").strip()
    return f"{type(error).__name__} in {error.filename}, line {error.lineno}: {error.msg}" + (
        f" in `{text}`" if text else ""
    )


def call(
    target: Callable[..., Any], kwargs: Mapping[str, Any], where: str, given: Mapping[str, Any] | None = None
) -> Any:
    """Returns `target(**kwargs)`, with `kwargs` as in `arguments_of`. Raises `ConfigError` if `target` needs arguments
    that `kwargs` lack; the message names them as options below `where`, and the arguments `given` by collectx."""
    try:
        return call_with_tuples(target, **arguments_of(target, kwargs, where))
    except TypeError as error:
        raise_missing(error, target, kwargs, where, given)
        raise


def raise_missing(
    error: TypeError,
    target: Callable[..., Any],
    kwargs: Mapping[str, Any],
    where: str,
    given: Mapping[str, Any] | None = None,
) -> None:
    """Raises a `ConfigError` from `error` if `target` needs arguments that `kwargs` lack; see `call`."""
    try:
        parameters = inspect.signature(target).parameters
    except (TypeError, ValueError):  # a builtin may lack a signature
        return
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = (name for name, each in parameters.items() if each.default is each.empty and each.kind not in variable)
    if missing := [name for name in needed if name not in kwargs]:
        name = getattr(target, "__qualname__", repr(target)).rpartition("<locals>.")[2]
        name = "the lambda" if name == "<lambda>" else name
        or_given = f", or take what collectx passes: {', '.join(given)}" if given else ""
        problems = []
        for each in missing:
            having = [key for key, value in (given or {}).items() if hasattr(value, each)]
            advice = f"Set {where}.{each}=VALUE{or_given}."
            if having:
                advice = f"Take {having[0]}, which collectx passes, and read {having[0]}.{each}."
            problems.append(f"{where}.{each} is not set, but {name} requires it. {advice}")
        raise ConfigError(*problems) from error


def extra_advice(error: Exception) -> str:
    """Returns the end of a message about a missing package or module: the command that installs it, if an extra
    contains it."""
    package = re.search(rf"\b({'|'.join(_EXTRAS)})\b", str(error), re.IGNORECASE)
    if package:
        return f". Install it: pip install 'collectx[{_EXTRAS[package[0].lower()]}]'"
    return missing_advice if isinstance(error, ModuleNotFoundError) else ""


_T = TypeVar("_T")


class Sealed(Generic[_T]):
    """An object on its way to another process, where `open` unpickles it. Process arguments are unpickled before the
    process's first line, when it cannot report an error to the trainer. `open` returns the object."""

    def __init__(self, open: Callable[[], _T]):
        self.open = open

    @classmethod
    def of(cls, value: _T) -> Sealed[_T]:
        return cls(lambda: value)

    def __reduce__(self) -> tuple:
        import cloudpickle

        return Sealed, (partial(pickle.loads, cloudpickle.dumps(self.open())),)


def shown(value: object) -> str:
    """Returns the representation of a user's object without its address, but with the place of a function."""
    code = getattr(value, "__code__", None)
    place = f" in {os.path.basename(code.co_filename)}, line {code.co_firstlineno}" if code is not None else ""
    return re.sub(r" at 0x[0-9a-fA-F]+", place, repr(value))


class _ByValue:
    """Pickled by cloudpickle, which supports lambdas, closures and definitions in `__main__`."""

    def __reduce__(self) -> tuple:
        import cloudpickle

        content = io.BytesIO()
        try:
            cloudpickle.dump(vars(self), content)
        except Exception as error:
            raise ConfigError(*[self._why(name, error) for name, one in vars(self).items() if _fails(one)]) from error
        users = [name for name, value in vars(self).items() if callable(value) or (value and type(value) is dict)]
        return _rebuild, (type(self), content.getvalue(), [self._keyword(name) for name in users])

    def _keyword(self, name: str) -> str:
        return _KEYWORDS.get((type(self).__name__, name), name)

    def _why(self, name: str, error: Exception) -> str:
        keyword, text = self._keyword(name), shown(getattr(self, name))
        # The representation of a torch module spans many lines.
        text = text.partition("(")[0] if "\n" in text else text
        why = f"{keyword}={text} cannot be pickled for the worker processes"
        if "mmap.mmap" in str(error) or "SemLock" in str(error):
            return (
                f"{why}: it contains a Value, Array, Lock or Queue of multiprocessing, or other shared memory, which "
                "only Process passes on. To change envs while they run, call collector.set_attr(NAME, value)."
            )
        return (
            f"{why} ({summary_of(error)}). Create it in a function that runs in the worker, such as create_env_fn or "
            "policy_factory."
        )


# The library's names for these attributes.
_KEYWORDS = {
    ("UserEnvConfig", "create"): "create_env_fn",
    ("UserEnvConfig", "kwargs"): "create_env_kwargs",
    ("UserPolicyConfig", "factory"): "policy_factory",
    ("UserCollector", "create"): "collector_class",
    ("UserCollector", "kwargs"): "collector_kwargs",
}


def _fails(value: Any) -> bool:
    import cloudpickle

    try:
        cloudpickle.dump(value, io.BytesIO())
    except Exception:
        return True
    return False


def _rebuild(cls: type, content: bytes, keywords: list[str]) -> Any:
    try:
        return cls(**pickle.loads(content))
    except Exception as error:
        error.add_note(
            f"raised while the worker unpickled {' and '.join(keywords)}, which the trainer pickled. Make everything "
            f"that {'it needs' if len(keywords) == 1 else 'they need'} importable in the worker."
        )
        raise


@dataclass(kw_only=True)
class UserEnvConfig(_ByValue, EnvConfig):
    """An env as a callable.

    Attributes:
        create: `create(**kwargs)` returns a Gymnasium env or vector env, or a TorchRL env; or `create` is such an env.
            It may take the numbers of `collectx.env.env_indices`.
        num_envs: the number of envs in a group; 0: one call makes the group, a single env without a batch dimension.
        info_keys, exclude_keys: as for other kinds of envs.
    """

    create: Callable[..., Any]
    kwargs: dict[str, Any] = field(default_factory=dict)
    info_keys: list[Any] = field(default_factory=list)
    exclude_keys: list[str] = field(default_factory=list)


@dataclass(kw_only=True)
class UserPolicyConfig(_ByValue, PolicyConfig):
    """A policy, or a callable that makes one.

    Attributes:
        factory: called without arguments in every process.
        compile, cudagraph: see `collectx.policy.fast_call.Acceleration`.
        skip_signature_check: whether to call the policy with a TensorDict without checking its signature and keys.
    """

    policy: Any = None
    factory: Callable[[], Any] | None = None
    compile: dict[str, Any] | None = None
    cudagraph: dict[str, Any] | None = None
    skip_signature_check: bool = False


def is_object(policy: PolicyConfig) -> bool:
    """Whether the policy is a single object, shared by everything in this process that builds it."""
    return isinstance(policy, UserPolicyConfig) and policy.factory is None


@dataclass(frozen=True, kw_only=True)
class Hooks(_ByValue):
    """Functions that workers call.

    Attributes:
        pre_collect_hook, post_collect_hook: called before and after every batch of a worker; the latter gets the batch,
            and may change it in place.
        init_fn: called before a worker makes its env.
        write_batch: called with every batch `[envs, steps]` after `post_collect_hook`, to write it elsewhere.
    """

    pre_collect_hook: Callable[[], Any] | None = None
    post_collect_hook: Callable[[Any], Any] | None = None
    init_fn: Callable[[], Any] | None = None
    write_batch: Callable[[Any], Any] | None = None


@dataclass(frozen=True)
class UserCollector(_ByValue):
    """A user class that a worker runs as its collector.

    Attributes:
        create: the class, called as `create(create_env_fn, policy, frames_per_batch=..., total_frames=-1, **kwargs)`.
        num_workers: the length of the list `create_env_fn`; None: `create_env_fn` is a single callable.
    """

    create: Callable[..., Any]
    kwargs: dict[str, Any] = field(default_factory=dict)
    num_workers: int | None = None

    @property
    def name(self) -> str:
        return getattr(self.create, "__name__", repr(self.create))


@dataclass
class UserObjects:
    """The parts of a worker's spec that are not plain data; None for parts that are, or are missing."""

    env: UserEnvConfig | None = None
    policy: UserPolicyConfig | None = None
    hooks: Hooks = field(default_factory=Hooks)
    user_collector: UserCollector | None = None

    @classmethod
    def of(
        cls,
        env: EnvConfig,
        policy: PolicyConfig,
        hooks: Hooks | None = None,
        user_collector: UserCollector | None = None,
    ) -> UserObjects:
        """Returns the parts of a configuration that are not plain data."""
        return cls(
            env if isinstance(env, UserEnvConfig) else None,
            policy if isinstance(policy, UserPolicyConfig) else None,
            hooks or Hooks(),
            user_collector,
        )
