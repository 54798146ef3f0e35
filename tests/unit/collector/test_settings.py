"""Which settings are in force, for whom, and what a checkpoint says of them."""

from collectx.collector.worker_record import Settings


def test_of_each_name_the_last_setting_is_in_force_in_the_order_in_which_they_were_made():
    settings = Settings()
    settings.add("call", "go", ["a"])
    settings.add("set_attr", "go", ["b", "c"])
    settings.add("call", "go", ["d"])
    assert settings.since(0, 3) == [("set_attr", "go", "c"), ("call", "go", "d")]
    assert settings.since(2, 0) == [("call", "go", "d")]
    assert settings.since(3, 0) == []
    again = Settings()
    again.load(settings.state())
    assert again.version == 3
    assert again.since(0, 2) == [("set_attr", "go", "b"), ("call", "go", "d")]
    assert again.in_force == settings.in_force


def test_a_withdrawn_setting_puts_the_last_confirmed_one_in_force_again():
    settings = Settings()
    first = settings.add("call", "go", ["a"])
    settings.add("set_attr", "go", ["b"])
    refused = [settings.add("call", "go", [each]) for each in "cd"]
    for setting in (*refused, refused[0]):
        settings.withdraw(setting)
    assert settings.since(0, 0) == [("call", "go", "a"), ("set_attr", "go", "b")]
    assert settings.version == 4
    settings.confirm(settings.add("call", "go", ["e"]))
    settings.withdraw(settings.in_force[-1])
    assert settings.since(0, 0) == [("set_attr", "go", "b")]
    assert first not in settings.in_force
