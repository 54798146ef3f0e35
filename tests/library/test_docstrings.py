import doctest

import gymnasium
import torch

import collectx
from collectx.collector.env_methods import EnvMethods


def test_the_package_lists_no_names_that_it_imports_for_itself():
    assert {"Collector", "ReplayBuffer", "__version__", "filter_warnings_subprocess"} <= {*dir(collectx)}
    assert not {"Any", "TYPE_CHECKING", "annotations", "importlib"} & {*dir(collectx)}


def test_the_examples_in_docstrings_run():
    names = {"gymnasium": gymnasium, "torch": torch, **{name: getattr(collectx, name) for name in collectx.__all__}}
    public = {EnvMethods, *filter(callable, (getattr(collectx, name) for name in collectx.__all__))}
    finder = doctest.DocTestFinder(recurse=False)
    found = [test for each in public for test in finder.find(each, each.__name__, globs=dict(names))]
    examples = [each for each in found if each.examples]
    assert len(examples) >= 7
    runner = doctest.DocTestRunner()
    for each in examples:
        runner.run(each)
    assert not runner.failures
