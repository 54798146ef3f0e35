"""User objects on their way to another process."""

import pickle

import pytest

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
        (print, {"size": Broken()}, "create_env_fn, create_env_kwargs: pickled"),
        (Broken(), {}, "create_env_fn: pickled"),
    ],
)
def test_an_error_while_unpickling_names_what_the_user_passed(create, kwargs, keywords):
    content = pickle.dumps(UserEnvConfig(kind="python", create=create, kwargs=kwargs))
    with pytest.raises(ModuleNotFoundError, match="no module") as error:
        pickle.loads(content)
    assert error.value.__notes__[0].startswith(keywords)
