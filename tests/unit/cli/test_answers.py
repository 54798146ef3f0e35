"""What whole command lines print, and how they end, where they start no run; and the tables that they are read by."""

import json
import re
import shlex

import pytest
from batch_lines import batch_line
from omegaconf import OmegaConf

from collectx import tune
from collectx.cli import arguments, completion, main, overrides, sweep
from collectx.cli import tune as tune_command
from collectx.cli.compose import Composer, parsed

LINES = {
    "usage": r"""

--help
--version
--hlep
run --help env.num_envs
run --help envv
rn
xyz
-m run seed=0,1
--cfg job
cancel
cancel a b
cancel ''
cancel nothing
cancel file
cancel empty
cancel --later
cancel --help
watch nothing
watch a --follow
logs
logs file trainer
logs empty a b
status
status nothing
status ''
status a b
status empty
status --long
report
report nothing
report out=x
report empty
export nothing
export empty format=x
export empty format=onnx weights=x
export --trst
export empty --format onnx
export empty --format=onnx
export empty --foo=3
resume
resume nothing
resume empty
resume a b
reproduce
reproduce empty
eval
eval nothing
eval --episodes 3 run
eval --video
schema colector
schema env policy
schema --json
list nothing
list env policy
list inference
list checkpoint
doctor now
plan --jsn
tune --output here.yaml
tune --output other/experiment/here.yaml --config-dir empty
tune --output file/experiment/here.yaml
tune --config-dir nothing
run --config-path x
run --experimental-rerun x
run --config-dir nothing
run --seed 3
run --seed=3
run --debug
run help
run debug
list cartpole
list debug=tiny
list trainer ppo lr
help status
trian
init file
init file/a
logs finished worker 0
logs finished worker a
plot run
run --resume
run --multirun=3
run --cfg nothing
run --config-dir file
doctor --json=1
run -x
run -seed 3
sweep seed=0,1
play finished
""",
    "compositions": r"""
plan colector=x env.num_envs=0
plan -m seed=interval(0,1)
tune -m seed=0,1
run -m seed=range(0,0)
run -m env.num_envs=0,1 seed=-1
run --config-name nothing
run hydra.launcher.partition=x
run ~nothing
run ~env.id
run policy.hidden_sizes={a:1}
run gamma=0,99
run debug=true
run --config-name conf/env/mine.yaml
run --config-name nothing.yaml
run trainer.gamma=0,99
run -m trainer.gamma=0,99 seed=-1,1
run seed=0,10
run policy=LSTM
run collector=sync
run env=minigrid
run env=pettingzoo
run hydra/launcher=slurm
run hydra.launcher.timeout_min=60
run launcher=slurm launcher.timeout_min=60
run env.seed=3
run wandb.project=foo
run collector.num_workers=0
run 'seed = 3'
run seed==3
run logger=tb
run seed=${oc.env:NOTHING}
""",
    "mistakes": r"""
train
version
run -m hydra/sweeper=ax seed=0,1
run -m hydra/launcher=rq seed=0,1
run conf/experiment/without.yaml
run conf/env/mine.yaml
run my/primary.yaml
run my/whole.yaml
run --config-dir my -cn whole seed=1
run --config-dir my -cn whole debug=tiny
run -cn loose
run --config-dir my -cn loose
run --config-dir my -cn text
run policy.hidden_sizes=[64, 64] seed=1
run -m seed=0, 1
run -c empty
run policy.hidden_sizes=[64, 64, 64]
run env.kwargs={a: 1, b: 2}
run policy.hidden_sizes=[64, seed=1
run trainer=a2c
run trainer=td3
run policy=gru
run trainer.n_steps=128
run n_envs=4
run --config=without
run --config=without.yaml
run --config=my.yaml
run --config loose.yaml
run -c loose.yaml
run experiment=without.yaml
run experiment=ppo.yaml
run --config-dir conf experiment=without.yaml
run --num-steps 128
run --num-steps 128 trainer=dqn
run n_steps=2048
run n_steps=4 trainer=dqn
run batch_size=64
run epsilon_start=1
run trainer=dqn batch_size=64
run --total-timesteps 100000 --wandb-project-name=foo --no-cuda --learning-rate 3e-4 --env-id X
run total-timesteps=100
cancel finished --wait --all
run -n 4
run WANDB_MODE=offline logger.entity=me
run devices=cuda:0
plan env=atari
run optimizer=adamw framework=torch
run trainer.target_kl=0.1
run --config-dir files experiment=no_package
run --config-dir files experiment=no_slash
run --config-dir files experiment=no_package_no_slash
run --config-dir files experiment=no_override
run --config-dir files experiment=only_slash
run --config-dir files experiment=no_group
run --config-dir files experiment=texts
run --config-dir files experiment=tab
run --config-dir files experiment=blank
run --config-dir files experiment=unknown
run --config-dir files experiment=unknown trainer.gamma=b
run --config-dir files experiment=twice
run --config-dir files experiment=comma
run --config-dir files env=first
run --config-dir files env=base
run --config-dir files env=ending
run --config-dir files env=good env.kwargs.size=${nothing}
run --config-dir files --config-name experiment/twice debug=tiny
run env=mine experiment=without
run --config-dir empty env=mine
run --config-dir conf experiment=without
run --config-dir conf env=mine
run --config-dir conf/env env=mine
run trainer=custom trainer.target=a:B trainer.learning_rate=1e-3
run 'env={id: Acrobot-v1}'
run trainer=PPO trainer.lr=1 clip_range=0.1 run.dir=x
run trainer.lr=1 collector.n_envs=4 total_timesteps=10
run checkpoint.keep_best=true
run -m hydra/sweeper=halving sweep.rungs=[512] 'trainer.learning_rate=interval(1e-4,1e-2,log=true)'
run -m hydra/sweeper=halving sweep.rungs='"[512]"' sweep.objective=eval/mean_return seed=[0,1]
run -m hydra/sweeper=halving hydra.sweeper.n_trials=4 seed=0,1
run -m hydra/sweeper=halving hydra.sweeper.direction=maximize seed=0,1
export finished format=ONNX
export finished format=pt
export finished onnx
eval finished/policy.pt
logs finished/logs
eval finished best
resume nothing policy.hidden_sizes=[64, 64]
resume nothing seed 3
run hydra.run.dir=finished collector.min_workers=1
resume finished/checkpoints/000000002
resume finished debug=inline
reproduce finished experiment=without
run hydra.run.dir=finished
run hydra.run.dir=finished debug=tiny
resume failed run.overwrite=true
resume failed seed=1
resume damaged
run -m trainer.learning_rate=1e-3, 1e-4
run logger=tensorboard,csv
run policy.hidden_sizes=64,64
run -m trainer.gamma=interval(0.9,1)
run train.py
run env:cartpole
run grid:Chase
run env=my_env.py
run env=mujoco
run env=atari env.id=Breakout-v5
run env=ale env.id=PongNoFrameskip-v4
run env.entry_point=user_code.walk:Walk env.id=null env.kwargs.max_episode_steps=50
run launcher.partition=gpu
compare a b
tensorboard
run --resume finished
run logger.csv.path=x
run logger.csv=true
tune seed=1,2
run resume=true
run run.max_minutes=1h
run checkpoint.grace_s=2min
run checkpoint.every=10
run checkpoint.path=a
run workers=4 epochs=10
run seeds=5
eval finished --deterministic
run config.yaml
run policy.hidden_sizes=64 64
run policy.hidden_sizes="'64,64'"
run -m seed=1 2 3
run logger=[csv tensorboard]
run env=gym:CartPole-v1
run conf
tail finished
run collector.total_frames=100,000
run --no_flag --neither
eval finished eps=5
eval finished n=5
eval finished episode=5
tune trainer.learning_rate=1e-3,1e-4
run -m hydra/launcher=joblb seed=0,1
run -m hydra/sweeper=nevergrd seed=0,1
run -m hydra/sweeper=optuna debug=tiny
run -m seed=0,1 hydra.run.dir=zz
run seed=0 hydra.mode=MULTIRUN hydra.run.dir=zz
run seed=0 hydra.sweep.dir=zz
run collector.total_frames = 1000 seed =3 trainer= ppo
run device=cuda
report finished out=
report finished objective=
export finished format=onnx output=
run 'seed: 3'
run 'seed 3'
record finished
run --version
eval --version
report finished --output rep
report finished --metric mean_return
report finished metric=mean_return
report finished/metrics.jsonl
export finished --to onnx
export finished path=x format=onnx
run env=x.yaml
run env=conf/env/mine.yaml
run env=mine.yaml
run env=loose.yaml
run hydra.run_dir=foo
run hydra.foo=foo
run +env.foo=3
run env=gym env.foo=3
run trainer=record dir=foo
tune --minutes 9
tune minuts=1
tune finished minutes=1
logs finished worker 7
run trainer=ddqn
run collector.wrappers=[x]
run policy.dir=x
run trainer=custom trainer.taget=a:B
run env=gym env.entrypoint=a:B
run -cn my/whole
run -cn mine/config
run --config-dir mine
run -m seed=0,1 sweep.objective=reward
report finished metric=reward
report finished objective=fps
""",
}


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """The working directory has an empty folder `empty`, and a file `file`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    for name, text in {
        "conf/experiment/without.yaml": "env:\n  num_envs: 3\ntrainer:\n  learning_rate: 1.0\n",
        "my/whole.yaml": "seed: 3\n",
        "conf/env/mine.yaml": "defaults: [cartpole, _self_]\nnum_envs: many\n",
        "my/text.yaml": "defaults: [config, _self_]\nenv: pendulum\n",
        "loose.yaml": "seed: 3\n",
        "mine/config.yaml": "defaults: [config, _self_]\nseed: 3\n",
        "mine/trainer/ppo.yaml": "gamma: 0.5\n",
        "files/experiment/no_package.yaml": "defaults: [override /env: cartpole]\n",
        "files/experiment/no_slash.yaml": "# @package _global_\ndefaults: [override env: cartpole]\n",
        "files/experiment/no_package_no_slash.yaml": "defaults: [override env: cartpole]\n",
        "files/experiment/no_override.yaml": "# @package _global_\ndefaults: [env: pendulum]\n",
        "files/experiment/only_slash.yaml": "# @package _global_\ndefaults: [/env: pendulum]\n",
        "files/experiment/no_group.yaml": "# @package _global_\ndefaults: [override /envv: pendulum]\n",
        "files/experiment/tab.yaml": "# @package _global_\ntrainer:\n\tgamma: 0.9\n",
        "files/experiment/blank.yaml": "# @package _global_\ntrainer:\n  gamma:0.9\n  num_epochs: 2\n",
        "files/experiment/unknown.yaml": "# @package _global_\ncolector: {num_workers: 3}\ntrainer: {gamma: a}\n",
        "files/experiment/twice.yaml": (
            "# @package _global_\ndefaults: [override /env: pong, override /trainer: meter, override /env: cartpole]\n"
        ),
        "files/experiment/comma.yaml": "# @package _global_\ncollector: {frames_per_batch: 1,024}\n",
        "files/env/first.yaml": "defaults: [_self_, gym]\nentry_point: a:B\n",
        "files/env/base.yaml": "defaults: [gymm, _self_]\nid: CartPole-v1\n",
        "files/env/ending.yml": "defaults: [gym, _self_]\nid: CartPole-v1\n",
        "files/env/good.yaml": "defaults: [gym, _self_]\nid: CartPole-v1\n",
        "files/experiment/texts.yaml": "# @package _global_\ntrainer: ppo\nlogger: csv\n",
        "finished/snapshot/config.yaml": "seed: 0\n",
        "finished/snapshot/meta.json": "{}",
        "finished/metrics.jsonl": json.dumps(batch_line(digest="0").to_json()) + "\n",
        "finished/result.json": '{"status": "completed"}',
        "finished/checkpoints/000000002/manifest.json": "{}",
        "failed/snapshot/config.yaml": "seed: 0\n",
        "damaged/snapshot/config.yaml": "garbage\n",
        "damaged/checkpoints/000000002/manifest.json": "{}",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.usefixtures("stub")
@pytest.mark.parametrize("name", LINES)
def test_whole_answers(name, folders, expected, capsys, queue):
    text = []
    for line in LINES[name][1:-1].split("\n"):
        status = main._status(shlex.split(line))
        said = capsys.readouterr()
        text.append(f"$ collectx {line}".rstrip())
        for mark, output in (("  ", said.out), ("! ", said.err)):
            shown = re.sub(r"collectx \d\S*", "collectx VERSION", output.replace(str(folders), "CWD"))
            text += [(mark + each).rstrip() for each in shown.splitlines()]
        text.append(f"= {status}")
    expected(f"answers about {name}", "\n".join(text))


def test_whole_completions(expected, monkeypatch, capsys):
    def candidates(line):
        monkeypatch.setenv("COMP_LINE", line)
        assert completion.main(["query=bash"], main.SUBCOMMANDS) == 0
        return capsys.readouterr().out.split()

    answers = {"": candidates("")}
    for subcommand in ("ru", "list", "tune", "cancel", "schema", "nothing"):
        for last in ("", " ", " -", " --c", " x"):
            line = f"collectx {subcommand}{last}"
            answers[line] = candidates(line)
    answers |= {f"flags of {name}": arguments.names(name) for name in main.SUBCOMMANDS}
    expected("completions", {line: " ".join(words) for line, words in answers.items()})


@pytest.mark.parametrize(
    ("direction", "objective", "note"),
    [
        (
            "minimize",
            "mean_return",
            "=minimize looks for the lowest mean_return. Add hydra.sweeper.direction=maximize.",
        ),
        ("maximize", "wall_s", "=maximize looks for the highest wall_s. Add hydra.sweeper.direction=minimize."),
        (
            ["minimize", "minimize"],
            ["mean_return", "wall_s"],
            "=[minimize,minimize] looks for the lowest mean_return. Add hydra.sweeper.direction=[maximize,minimize].",
        ),
        ("maximize", "mean_return", None),
        ("minimize", "start_s", None),
        (None, "mean_return", None),
    ],
)
def test_a_search_for_the_worst_points_is_told_unless_it_was_typed(direction, objective, note):
    def notes(typed):
        hydra = {"sweeper": {"direction": direction}, "overrides": {"hydra": typed}}
        return [*sweep._direction_notes(OmegaConf.create({"hydra": hydra, "sweep": {"objective": objective}}))]

    assert notes(["hydra.mode=MULTIRUN"]) == [f"hydra.sweeper.direction{note}"] * bool(note)
    assert notes(["hydra.sweeper.direction=minimize"]) == []


def test_whole_sweeps(expected):
    """The points of each command line, by the sweeper that enumerates and as one example for one that searches."""
    long = [f"env.kwargs.{'x' * 50}={value}" for value in range(3)]
    text = []
    for words in (
        [],
        ["seed=0"],
        ["seed=0,1"],
        ["seed=0,1", "env=gym,counting", "a.b=1"],
        ["a=choice(x,y)", "a=range(0,4,2)", "b='p,q'"],
        ["a=[1,2],[3]", "+b={x:1},{x:2}", "++c=1,1"],
        ["a=interval(0,3)", "b=interval(0.0,3)", "c=range(5,7)"],
        [f"{each},9" for each in long],
    ):
        swept = parsed(words)
        text.append(" ".join(words) or "(nothing)")
        text.append(f"  an example: {' '.join(sweep.sample(swept))}")
        if any("interval" in word for word in words):
            continue
        points = sweep.product(swept)
        for point, name, longer in zip(points, sweep.names(points), sweep.names(points, {"seed=0"}), strict=True):
            text.append(f"  {name} | {longer} | {' '.join(sweep.last_of_each_key(point))}")
    searched = [["a=1", "c=0"], ["a=2", "b=1", "c=0"], ["c=0"]]
    text += ["points of a search", *(f"  {name}" for name in sweep.names(searched, {"c=0"}))]
    text += ["a name of 182 bytes", f"  {sweep.names([['a=' + 'é' * 90], ['a=1']])[0]}"]
    expected("sweeps", "\n".join(text))


def test_whole_overrides(expected):
    groups = {"env": ["gym", "gym_vector", "pong"], "logger": ["csv", "custom"], "experiment": ["fast"], "mine": ["a"]}
    text = []
    for word in (
        *("a=1", "+a=1", "++a=1", "~a", "~a=1", "a@b=1", "env@x=gym", "+env@x=gym", "env=gym", "+env=gym", "++env=gym"),
        *(
            "env=gim",
            "env=gym,pong",
            "env=gym,x,y",
            "env=null",
            "env=",
            "~env",
            "env=[gym]",
            "env=a:B",
            "env=range(1,3)",
        ),
        *("logger=[csv,custom]", "logger=[csv,x]", "logger=null", "logger=a:B", "logger=csv,[csv,custom]", "mine=b:C"),
        *("experiment=null", "experiment=fast", "experiment=x", "mine=null", "env=interval(0,1)"),
        *("env=glob(gym*)", "env=glob([*],exclude=gym*)", "env=glob(z)", "nothing=glob(*)", "env=glob(pong)"),
        *("hydra.run.dir=", "hydra.run.dir=null", "hydra.run.dir=a", "hydra.sweep.dir=''", "hydra.verbose=true"),
        *("hydra/launcher=joblib", "+x/y=z", "", "=", "a", "a=b=c", "a=[1", "a='x", "a=1,2", "a.b=$x"),
    ):
        checked = overrides.check_overrides([word], groups)
        text.append(f"{word}: {' '.join(checked.overrides)} {' '.join(f'without {each}' for each in checked.broken)}")
        text += [f"  ! {problem}" for problem in checked.problems]
    expected("overrides", "\n".join(each.rstrip() for each in text))


def test_of_two_values_the_first_has_no_effect():
    """Hydra's own command line does the same, so a script may append to its defaults."""
    groups = Composer().choices([])
    words = ["env=pendulum", "env=cartpole", "env=cartpole", "seed=1", "+seed=2", "~logger", "logger=csv", "seed=2"]
    assert overrides.check_overrides(words, groups).notes == (
        "env=pendulum has no effect, because env=cartpole comes after it.",
        "seed=1 has no effect, because +seed=2 comes after it.",
        "+seed=2 has no effect, because seed=2 comes after it.",
    )


def test_whole_results_of_tune(expected):
    """The verdict, the rows of the table, and the experiment."""
    yours, other = (
        tune.Point({"collector.num_workers": count, "inference": kind}, rates)
        for count, kind, rates in ((2, "local", [1000.0, 1100.0]), (4, "server", [2000.0]))
    )
    failed = tune.Point({"collector.num_workers": 8, "inference": "local"}, [], "failed: no memory")
    points, text = [yours, other, failed], []
    for best, gain in (
        (yours, None),
        (other, None),
        (other, (2.0, 1.004, 3.0)),
        (other, (2.0, 1.0, 3.0)),
        (other, (1.1, 0.9, 1.3)),
    ):
        result = tune.SearchResult(points, best, gain)
        text += [tune_command._verdict(result), *(f"  {tune_command._row(point, result)}" for point in points)]
    composer = Composer()
    for words, values, comments in (
        ([], {"collector.num_workers": 4}, ["faster"]),
        (["seed=3", "env=pendulum"], {"inference": "server", "env.num_envs": 2}, ["faster", "with lag", "measured"]),
        (["experiment=throughput", "++env.kwargs.x=[1,2]", "run.max_batches=3"], {"collector.overlap": 1}, ["a"]),
        (["~logger", "hydra.run.dir=x", "hydra/launcher=joblib", "+env@x=gym"], {}, ["a", "b"]),
    ):
        written, rest = tune_command._experiment(composer, parsed(words), values, comments)
        text += [f"=== {' '.join(words)} {values}", written, f"rest: {rest}"]
    expected("results of tune", "\n".join(text))
