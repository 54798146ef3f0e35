"""`collectx list`."""

from collectx.cli import list as listing


def test_every_group_in_the_order_of_the_data_path(capsys):
    assert listing.main([]) == 0
    out = capsys.readouterr().out
    groups = [line.rstrip(":") for line in out.splitlines() if not line.startswith(" ")]
    assert groups == ["env", "policy", "collector", "backend", "launcher", "devices", "trainer", "experiment", "debug"]
    assert "  cartpole     CartPole-v1: balance a pole" in out
    assert "@package" not in out
    assert out.count("Ray exchanges pickles: use it on trusted networks only.\n") == 2


def test_one_group_with_choices_of_the_user(tmp_path, capsys):
    (tmp_path / "policy").mkdir()
    (tmp_path / "policy" / "mine.yaml").write_text("# Mine.\nkind: custom\n")
    assert listing.main(["policy", "--config-dir", str(tmp_path)]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "policy:"
    assert "  mine    Mine." in out
    assert listing.main(["polic"]) == 2
    assert "did you mean policy?" in capsys.readouterr().err
