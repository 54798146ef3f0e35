"""Features of Hydra, each as its documentation describes it: what the run layer is handed, or what is printed. Hydra's
other launchers and sweepers: tests/system/test_hydra.py."""

import logging
import os
import re
from pathlib import Path

import pytest
from hydra.experimental.callback import Callback

from collectx.cli import run

pytestmark = pytest.mark.ci

FILES = {
    "my_conf/env/mine.yaml": "defaults: [gym, _self_]\nid: mine:Mine-v0\n",
    "my_conf/experiment/sweeping.yaml": """
        # @package _global_
        defaults: [override /trainer: meter]
        hydra: {mode: MULTIRUN, sweep: {dir: by_experiment, subdir: 'point_${hydra.job.num}'}}
        """,
    "my_conf/experiment/basic.yaml": """
        # @package _global_
        defaults: [override /hydra/launcher: basic]
        hydra: {sweep: {dir: by_experiment}}
        """,
    "my_conf/experiment/joblib.yaml": """
        # @package _global_
        defaults: [override /hydra/launcher: joblib]
        hydra: {launcher: {n_jobs: 2}}
        """,
    "my_conf/experiment/params.yaml": """
        # @package _global_
        hydra: {sweeper: {params: {seed: '4,5'}}}
        """,
    "my_conf/primary.yaml": """
        defaults: [config, _self_, override hydra/launcher: basic]
        seed: 5
        hydra: {mode: MULTIRUN, sweep: {dir: by_primary}}
        """,
    "my_conf/searching.yaml": """
        defaults: [config, _self_, override env: other]
        hydra: {searchpath: [file://more]}
        """,
    "more/env/other.yaml": "defaults: [gym, _self_]\nid: other:Other-v0\n",
}


class Recorder(Callback):
    """A callback of a user."""

    def on_job_end(self, config, job_return, **kwargs):
        Path("called").touch()


def _text(key):
    def of(cfg, folder):
        for name in key.split("."):
            cfg = cfg[name] if isinstance(cfg, dict) else getattr(cfg, name)
        return cfg

    return of


def _folder(cfg, folder):
    return str(folder.relative_to(Path.cwd()))


SEED, KWARGS = _text("seed"), _text("env.kwargs")
# Command line, what is looked at of each run, and what it is.
RUNS = [
    ("seed=3", SEED, [3]),
    ("env=pendulum", _text("env.id"), ["Pendulum-v1"]),
    ("env.kwargs.gravity=3.7", KWARGS, [{"gravity": 3.7}]),
    ("+env.kwargs.a=1", KWARGS, [{"a": 1}]),
    ("++env.kwargs.a=1 seed=2", KWARGS, [{"a": 1}]),
    ("env.kwargs.gravity=3.7 ~env.kwargs", KWARGS, [{}]),
    ("env.kwargs.a=1 env.kwargs.b=2 ~env.kwargs.a", KWARGS, [{"b": 2}]),
    ("env.kwargs.title='x, y'", KWARGS, [{"title": "x, y"}]),
    ("policy.hidden_sizes=[256,256]", _text("policy.hidden_sizes"), [[256, 256]]),
    ("env.kwargs={gravity:3.7,wind:{power:5}}", KWARGS, [{"gravity": 3.7, "wind": {"power": 5}}]),
    ("env.kwargs.a=null", KWARGS, [{"a": None}]),
    ("env.kwargs.a=int(3.7)", KWARGS, [{"a": 3}]),
    ("env.kwargs.level=str(3)", KWARGS, [{"level": "3"}]),
    ("seed=7 env.kwargs.level=${seed}", KWARGS, [{"level": 7}]),
    ("env.kwargs.path=${oc.env:HOME}", KWARGS, [{"path": "/home/user"}]),
    ("env.kwargs.a=${oc.decode:'[1,2]'}", KWARGS, [{"a": [1, 2]}]),
    ("env.kwargs.a=${hydra:job.name}", KWARGS, [{"a": "collectx"}]),
    (
        "env.kwargs.path=${hydra:runtime.output_dir}/maps",
        lambda cfg, folder: cfg.env.kwargs["path"] == f"{folder}/maps",
        [True],
    ),
    ("debug=null experiment=null", SEED, [0]),
    ("~debug", SEED, [0]),
    ("hydra.run.dir=here/${seed}", _folder, ["here/0"]),
    ("hydra.run.dir=${hydra.job.override_dirname} seed=2", _folder, ["seed=2"]),
    ("hydra.run.dir=here hydra.output_subdir=null", lambda cfg, folder: (folder / ".hydra").exists(), [False]),
    (
        "hydra.run.dir=here hydra.output_subdir=.mine",
        lambda cfg, folder: (folder / ".mine" / "hydra.yaml").exists(),
        [True],
    ),
    ("hydra.run.dir=here hydra.job.chdir=true", lambda cfg, folder: Path.cwd() == folder, [True]),
    ("+hydra.job.env_set.MUJOCO_GL=egl", lambda cfg, folder: os.environ["MUJOCO_GL"], ["egl"]),
    ("hydra.job.name=mine env.kwargs.a=${hydra:job.name}", KWARGS, [{"a": "mine"}]),
    ("hydra.verbose=true", lambda cfg, folder: logging.getLogger().level, [logging.DEBUG]),
    ("+hydra.callbacks.mine._target_=test_hydra_features.Recorder", SEED, [0]),
    ("--config-dir my_conf env=mine", _text("env.id"), ["mine:Mine-v0"]),
    ("-cd my_conf env=mine", _text("env.id"), ["mine:Mine-v0"]),
    ("hydra.searchpath=[file://more] env=other", _text("env.id"), ["other:Other-v0"]),
    ("--config-dir my_conf --config-name searching", _text("env.id"), ["other:Other-v0"]),
    ("--config-dir my_conf --config-name primary", SEED, [5]),
    ("--config-dir my_conf -cn primary", _folder, ["by_primary/0"]),
    ("--config-dir my_conf experiment=sweeping", _folder, ["by_experiment/point_0"]),
    ("--config-dir my_conf experiment=sweeping seed=1,2", _folder, ["by_experiment/point_0", "by_experiment/point_1"]),
    ("--config-dir my_conf -m experiment=basic seed=1,2", _folder, ["by_experiment/0", "by_experiment/1"]),
    ("--config-dir my_conf -m experiment=joblib hydra/launcher=collectx seed=1,2", SEED, [1, 2]),
    ("-m hydra/launcher=basic hydra.sweep.dir=s seed=1,2", _folder, ["s/0", "s/1"]),
    ("-m hydra/launcher=basic hydra.sweep.dir=s hydra.sweep.subdir=${seed} seed=1,2", _folder, ["s/1", "s/2"]),
    ("-m seed=1,2", SEED, [1, 2]),
    ("--multirun seed=1,2", SEED, [1, 2]),
    ("hydra.mode=MULTIRUN seed=1,2", SEED, [1, 2]),
    ("-m seed=choice(4,2)", SEED, [4, 2]),
    ("-m seed=range(0,6,2)", SEED, [0, 2, 4]),
    ("-m seed=sort(3,1,2)", SEED, [1, 2, 3]),
    ("-m seed=sort(3,1,reverse=true)", SEED, [3, 1]),
    ("-m seed=tag(a,b,choice(1,2))", SEED, [1, 2]),
    ("-m seed=shuffle(range(0,3))", lambda cfg, folder: cfg.seed in range(3), [True] * 3),
    ("-m env=glob(cart*)", _text("env.kind"), ["gym"]),
    ("-m env=glob(c*)", _text("env.kind"), ["gym", "counting"]),
    ("-m env=glob(*,exclude=[d*,e*,g*,h*,m*,p*,t*])", _text("env.kind"), ["gym", "counting"]),
    ("-m policy.hidden_sizes=[64,64],[256,256]", _text("policy.hidden_sizes"), [[64, 64], [256, 256]]),
    ("-m env.kwargs={gravity:3.7},{gravity:9.8}", KWARGS, [{"gravity": 3.7}, {"gravity": 9.8}]),
    ("-m seed=1,2 trainer.gamma=0.9,0.8", _text("trainer.gamma"), [0.9, 0.8, 0.9, 0.8]),
    ("--config-dir my_conf -m experiment=params", SEED, [4, 5]),
    ("--config-dir my_conf -m experiment=params seed=7", SEED, [7]),
    ("-m hydra.sweeper.max_batch_size=1 seed=1,2", SEED, [1, 2]),
    ("-m hydra.sweep.dir=s seed=1,2", _folder, ["s/seed=1", "s/seed=2"]),
    ("-m hydra.sweep.dir=s hydra.sweep.subdir=p${hydra.job.num} seed=1,2", _folder, ["s/p0", "s/p1"]),
    ("-m hydra.sweep.dir=s hydra.sweep.subdir=${hydra.runtime.cwd}/o/${seed} seed=1,2", _folder, ["o/1", "o/2"]),
    ("-m hydra.sweep.dir=s", _folder, ["s/0"]),
]


@pytest.fixture
def files(tmp_path, monkeypatch):
    for name, text in FILES.items():
        lines = [line.removeprefix("        ") for line in text.lstrip("\n").splitlines()]
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("\n".join([*lines, ""]))
    monkeypatch.setenv("HOME", "/home/user")
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    level = logging.getLogger().level
    yield tmp_path
    logging.getLogger().setLevel(level)


@pytest.mark.sample(30)
@pytest.mark.parametrize(("line", "look", "expected"), RUNS, ids=[line for line, _, _ in RUNS])
def test_runs_are_those_that_hydra_documents(stub, files, line, look, expected):
    seen, words = [], ["env.kwargs.title='x, y'"] if "x, y" in line else line.split()
    if "env.kwargs" in line:
        words += ["env=gym", "env.id=mine:Mine-v0"]  # without a class whose arguments could be checked
    stub.status = lambda cfg: seen.append(look(cfg, stub.calls[-1][1])) or "completed"
    assert run.main(words) == 0
    assert seen == expected
    assert (files / "called").exists() == ("callbacks" in line)


PRINTED = [
    ("--cfg job", ["id: CartPole-v1", "seed: 0"]),
    ("--cfg job -p env", ["id: CartPole-v1"]),
    ("--cfg job --resolve seed=4 env.kwargs.level=${seed}", ["level: 4"]),
    ("--cfg hydra", ["sweep:", "_target_: hydra_plugins.collectx.CollectxLauncher"]),
    ("--cfg all", ["hydra:", "id: CartPole-v1"]),
    ("-c job -p trainer", ["gamma: 0.98"]),
    ("-m seed=3,4 --cfg job", ["seed: 3"]),
    ("seed=3,4 -m --cfg job --package env", ["id: CartPole-v1"]),
    ("--info searchpath", ["pkg://collectx.conf"]),
    ("--config-dir my_conf --info searchpath", ["command-line", "file://"]),
    ("--info plugins", ["CollectxLauncher"]),
    ("--info defaults", ["hydra/launcher"]),
    ("--info defaults-tree", ["_hydra"]),
    ("--info config", ["id: CartPole-v1"]),
    ("--info", ["Defaults List"]),
    ("--help", ["collectx run [overrides]", "trainer: custom"]),
    ("--help seed=4", ["seed: 4"]),
    ("hydra.help.template=mine --help", ["mine"]),
    ("--hydra-help", ["Hydra"]),
    ("--help experiment", ["cartpole_ppo"]),
    ("--config-dir my_conf --help env", ["mine"]),
    ("--help run", ["run.overwrite", "default false."]),
    ("--help checkpoint", ["checkpoint.every_min", "default 10."]),
    ("--help sweep", ["sweep.objective", 'default "mean_return".']),
]


@pytest.mark.parametrize(("line", "parts"), PRINTED, ids=[line for line, _ in PRINTED])
def test_flags_print_what_hydra_documents(stub, files, capsys, line, parts):
    assert run.main(line.split()) == 0
    out = capsys.readouterr().out
    assert [part for part in parts if part not in out] == []
    assert stub.calls == []


WRONG = [
    (
        "seed=${nowhere:2}",
        "seed cannot be resolved: Unsupported interpolation type nowhere. Register the resolver in ",
    ),
    ("seed=${nowhere}", "seed cannot be resolved: there is no option 'nowhere'"),
    ("env.kwargs.a=${oc.env:COLLECTX_NOTHING}", "COLLECTX_NOTHING"),
    ("hydra.run.dir=${nowhere}", "hydra.run.dir=${nowhere} cannot be resolved: there is no option 'nowhere'"),
    (
        "-m seed=1,2 hydra.sweep.dir=${nowhere}",
        "hydra.sweep.dir=${nowhere} cannot be resolved: there is no option 'nowhere'",
    ),
    (
        "--cfg job --resolve env.kwargs.a=${nowhere}",
        "env.kwargs cannot be resolved: there is no option 'nowhere' (env.kwargs.a)",
    ),
    (
        "--cfg job --resolve env.kwargs.a=${oc.env:COLLECTX_NOTHING}",
        "env.kwargs cannot be resolved: the environment variable",
    ),
    ("--resolve", "--cfg"),
    ("hydra/launcher=nope", "hydra/launcher"),
    ("hydra/launcher=submitit_slurm launcher=slurm", "both submit jobs"),
    ("hydra.launcher.partition=p", "launcher=slurm launcher.partition=VALUE"),
    ("-m hydra/launcher=submitit_slurm launcher.partition=p", "hydra.launcher.partition"),
    ("hydra.mode=RUN -m seed=1,2", None),
]


@pytest.mark.parametrize(("line", "part"), WRONG, ids=[line for line, _ in WRONG])
def test_what_is_wrong_is_named_and_starts_nothing(stub, files, capsys, line, part):
    before = {*files.rglob("*")}
    kwargs = ["env=gym", "env.id=mine:Mine-v0"] if "env.kwargs" in line else []
    assert run.main([*line.split(), *kwargs]) == (2 if part else 0)
    if part:
        assert part in capsys.readouterr().err
        assert (stub.calls, {*files.rglob("*")}) == ([], before)


def test_what_the_documentation_lists_is_tested_here():
    page = (Path(__file__).parents[3] / "docs" / "reference" / "hydra.md").read_text()
    rows = re.findall(r"^\| `(.*)` \| [^|]* \|$", page.partition("## Hydra features")[2], re.MULTILINE)
    assert len(rows) > 35
    listed = {line.replace("my_module", "test_hydra_features") for line in rows}
    # The quotes of the words that a shell would change are left to the reader.
    tested = {line.replace('"', "") for line, *_ in (*RUNS, *PRINTED)}
    # tests/system/test_arguments.py and test_interpolations.py type objects, tuples and texts.
    tested |= {line for line in listed if "_target_" in line or "ResizeObservation" in line or "echo" in line}
    tested |= {line for line in listed if "halving" in line}  # tests/system/test_halving.py
    assert listed - tested == set()
