"""Parts of the network: what listens where, gloo's pairs, and the options of RPC."""

import socket

import pytest
from configurations import config

from collectx.config.schema.launcher import RpcBackendConfig
from collectx.errors import ConfigError
from collectx.transport.network import addresses, rpc_options
from collectx.transport.network.addresses import listening_sockets, plain_address


@pytest.fixture
def listening(within):
    """Returns the listening places; `taken` are the occupied ones."""
    calls, taken = [], []

    class Server:
        def __init__(self, port):
            self.port, self.is_closed = port, False

        def __enter__(self):
            return self

        def __exit__(self, *_):
            calls.append(f"closed {self.port}")

        def getsockname(self):
            return ("", self.port)

    def create_server(place, **options):
        family = "6" if options.pop("family", socket.AF_INET) == socket.AF_INET6 else "4"
        calls.append(f"{place} v{family} {options}")
        if taken and taken.pop(0):
            raise OSError("taken")
        return Server(place[1] or 1000 + len(calls))

    within(
        addresses,
        "socket",
        create_server=create_server,
        has_dualstack_ipv6=lambda: has_both[0],
        if_nametoindex=lambda name: 5,
    )
    has_both = [True]
    return calls, taken, has_both


def test_what_is_listened_on(listening, expected):
    calls, taken, has_both = listening
    lines = []
    for places, port, interface, dual, busy in (
        (["127.0.0.1"], 7, None, True, []),
        (["127.0.0.1", "::1"], 0, None, True, []),
        (["127.0.0.1", "10.0.0.1"], 0, None, True, []),
        (["10.0.0.1"], 7, None, False, []),
        (["10.0.0.1", "fe80::1"], 0, "eth0", True, []),
        (["fd00::1"], 7, "eth0", True, []),
        (["127.0.0.1", "::1"], 0, None, True, [False, True]),
        (["127.0.0.1", "::1"], 0, None, True, [True] * 9),
        (["127.0.0.1", "::1"], 0, None, True, [True] * 10),
        (["127.0.0.1", "::1"], 7, None, True, [False, True]),
        (["10.0.0.1"], 7, None, True, [True]),
    ):
        calls.clear()
        taken[:], has_both[0] = busy, dual
        try:
            found = str([server.port for server in listening_sockets(places, port, interface)])
        except ConfigError as error:
            found = str(error)
        lines += [f"{places} port {port} on {interface}: {found}", *(f"    {call}" for call in calls)]
    expected("listening", "\n".join(lines))
    assert [plain_address(each) for each in ("::ffff:10.0.0.1", "fe80::1%eth0", "::1")] == [
        "10.0.0.1",
        "fe80::1",
        "::1",
    ]


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
        found = [each.rule for each in rpc_options.visible_problems(backend, 2, acting.__getitem__)]
        lines.append(f"{visible} {acting}: {found}")
    expected("rpc-options", "\n".join(lines))
