"""User objects on their way to another process."""

import pickle

import pytest

from collectx import user_objects
from collectx.errors import ConfigError
from collectx.user_objects import UserEnvConfig


def fail():
    raise ModuleNotFoundError("no module of this name on this machine")


class Broken:
    def __reduce__(self):
        return fail, ()

    def __call__(self):
        pass


@pytest.mark.parametrize(
    ("create", "kwargs", "keywords"),
    [
        (
            print,
            {"size": Broken()},
            "raised while the worker unpickled create_env_fn and create_env_kwargs, which",
        ),
        (Broken(), {}, "raised while the worker unpickled create_env_fn, which"),
    ],
)
def test_an_error_while_unpickling_names_what_the_user_passed(create, kwargs, keywords):
    content = pickle.dumps(UserEnvConfig(kind="python", create=create, kwargs=kwargs))
    with pytest.raises(ModuleNotFoundError, match="no module") as error:
        pickle.loads(content)
    assert error.value.__notes__[0].startswith(keywords)


SOURCE = """
def make(size, *, more=1): return (size, more)
def _hidden(): ...
class Maker:
    def __init__(self, size, more=2): self.size = size
    def __repr__(self): return f"Maker({self.size})"
number = 3
def fails(size): raise TypeError("of its own")
"""
NAMES = [
    *("sourced.make", "sourced:make", "sourced:Maker", "sourced.Maker", "sourced:mak", "sourced.mak", "sourced:number"),
    *(
        "sourced:Maker.__init__",
        "sourced:_hidden",
        "sourced",
        "sourced.py",
        "sourced:",
        ":make",
        "sourced:make:x",
        "sourced make",
        3,
    ),
    *("nowhere:make", "nowhere.at.all", "sourced.nowhere:make", "wrong:make", "wrong.make", "needs:make", "math:sqrt"),
    *("typo:make", "renamed:make", "lacks:make", "outer:make"),
    *("os.path.join", "os.path:joi", "xml.dom.minidom.parse", "", None, "builtins.print"),
    *(
        "sourced.py",
        "1sourced:make",
        "sourced..make:x",
        ".sourced:make",
        "./sourced:make",
        "user/sourced.py:make",
        "sourced.py:make",
    ),
]


@pytest.mark.parametrize("rest", [":Gate", ".Gate", ".envs:Gate"])
def test_a_module_of_the_working_directory_is_proposed_for_a_similar_name(rest, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bandit.py").touch()
    with pytest.raises(ConfigError, match=f"No module named 'bandid'. Did you mean env.entry_point=bandit{rest}?"):
        user_objects.resolve(f"bandid{rest}", "env.entry_point")


def test_whole_answers_about_import_paths(tmp_path, monkeypatch, expected):
    broken = {
        "typo": "\nimport gymnasim\n",
        "renamed": "import gym",
        "lacks": "import json; json.loadz",
        "outer": "import typo",
    }
    for name, text in {"sourced": SOURCE, "wrong": "x = (\n", **broken}.items():
        (tmp_path / f"{name}.py").write_text(text)
    (tmp_path / "needs.py").write_text("raise ImportError('MuJoCo is not installed')\n")
    monkeypatch.syspath_prepend(tmp_path)
    text = []
    for name in NAMES:
        try:
            target = user_objects.resolve(name, "env.target")
            answer = f"{target.__module__} {target.__qualname__}"
        except ConfigError as error:
            answer = f"! {error}"
        # Python's own words differ between its versions.
        text.append(f"{name}: {answer}".replace(str(tmp_path), "FOLDER").partition(" in `")[0])
    for item in (
        *("TimeLimit", "a.b:C", "a.b", "", max, {"TimeLimit": {"steps": 3}}, {"a:B": None}, {"a:B": {}}, {}),
        *({"_target_": "a.B", "x": 1}, {"_target_": "TimeLimit"}, {"x": 1, "_target_": "a.B"}, 3),
    ):
        text.append(f"{item!r}: {user_objects.named_call(item)}")
    make, maker, fails = (user_objects.resolve(f"sourced:{name}", "x") for name in ("make", "Maker", "fails"))
    for target, kwargs in (
        (make, {"size": 1}),
        (make, {}),
        (make, {"more": 2}),
        (make, {"size": 1, "other": 2}),
        (maker, {"size": 1}),
        (maker, {}),
        (fails, {"size": 1}),
        (fails, {}),
        (lambda one, two, *rest, **others: one + two, {"three": 3}),
    ):
        name = getattr(target, "__qualname__", str(target)).rpartition(".")[2]
        try:
            answer = user_objects.call(target, kwargs, "env.kwargs")
        except ConfigError as error:
            answer = [f"! {problem}" for problem in error.problems]
        except TypeError as error:
            answer = type(error).__name__
        text.append(f"{name}({kwargs}): {answer}")
    text += [
        f"{words}: {user_objects.extra_advice(Exception(words))}"
        for words in ("no mujoco", "MuJoCo", "OpenCV2", "no opencv here", "torchrl", "mytorchrl", "nothing")
    ]
    expected("import paths", "\n".join(text))
