"""Options of RPC that are refused, and why."""

from configurations import config

from collectx.config.schema.launcher import RpcBackendConfig
from collectx.transport.network import rpc_options


def test_the_options_of_rpc(expected):
    lines = []
    for key, value in [
        ("num_worker_threads", 4),
        ("num_worker_threads", 0),
        ("num_worker_threads", 1),
        ("rpc_timeout", 0.5),
        ("rpc_timeout", -1),
        ("rpc_timeout", True),
        ("rpc_timeout", "9"),
        ("_transports", ["uv", "shm"]),
        ("_transports", ("uv",)),
        ("_transports", []),
        ("_transports", "uv"),
        ("_channels", ["uv", 1]),
        ("init_method", "x"),
    ]:
        cfg = config("rpc")
        assert list(rpc_options.tensorpipe(cfg)) == []
        cfg.backend = RpcBackendConfig(kind="rpc", tensorpipe={key: value}, visible_devices=None)
        lines.append(f"{key}={value!r}: {[each.rule for each in rpc_options.tensorpipe(cfg)]}")
    for visible, acting in [
        (None, ["cpu", "cpu"]),
        ("cuda:0", ["cpu", "cpu"]),
        (["cuda:0", "gpu:1"], ["cpu", "cpu"]),
        (["cuda:0", "cuda:12", "cpu"], ["cpu", "cpu"]),
        (["cuda:0"], ["cpu", "cpu"]),
        (["cuda:0", "cpu"], ["cuda", "cuda"]),
        (["cuda:0", "cpu"], ["cpu", "cpu"]),
        (["cuda:0", "cuda:1"], ["cuda:0", "cuda:1"]),
        (["cuda:0", "cuda:1"], ["cuda:1", "cuda:1"]),
        ([], ["cpu", "cpu"]),
    ]:
        backend = RpcBackendConfig(kind="rpc", tensorpipe={}, visible_devices=visible)
        found = [each.rule for each in rpc_options.visible_problems(backend, acting)]
        lines.append(f"{visible} {acting}: {found}")
    expected("rpc-options", "\n".join(lines))
