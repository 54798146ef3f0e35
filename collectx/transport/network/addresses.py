"""This host's network addresses, and sockets that listen on them."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from collections.abc import Sequence
from typing import Any

from collectx.config.problem import Conflict, Problem, did_you_mean, opt
from collectx.errors import ConfigError

_BACKLOG = 1024


def local_addresses(interface: str | None) -> tuple[str, ...]:
    """Returns this host's addresses that other hosts may reach, best first: IPv4 before IPv6, addresses of its host
    name before others. Without a network, returns the loopback address. With `interface` (`backend.interface`), returns
    only the addresses of this interface, which may be loopback. Raises `ConfigError` if the interface does not exist,
    or lacks an address."""
    import psutil

    by_interface = {
        name: [plain_address(entry.address) for entry in entries if entry.family in (socket.AF_INET, socket.AF_INET6)]
        for name, entries in psutil.net_if_addrs().items()
    }
    if interface is not None:
        addresses = by_interface.get(interface)
        if not addresses:
            others = did_you_mean(interface, sorted(filter(by_interface.get, by_interface)))
            rule = f"is not a network interface with an address{others}"
            raise ConfigError(Problem("backend.interface", rule, interface))
        # A link-local IPv6 address is only valid together with the name of an interface on the other host.
        return tuple(address for address in addresses if not _is_link_local(address)) or tuple(addresses)
    up = {name for name, stats in psutil.net_if_stats().items() if stats.isup}
    usable = [
        address
        for name, addresses in by_interface.items()
        if name in up
        for address in addresses
        if not (ip := ipaddress.ip_address(address)).is_loopback and not ip.is_link_local
    ]
    named: set[str] = set()
    with contextlib.suppress(OSError):
        named = {str(entry[4][0]) for entry in socket.getaddrinfo(socket.gethostname(), None)}
    usable.sort(key=lambda address: (":" in address, address not in named))
    return tuple(usable) or ("127.0.0.1",)


def _is_link_local(address: str) -> bool:
    return ":" in address and ipaddress.ip_address(address).is_link_local


def listening_sockets(addresses: Sequence[str], port: int, interface: str | None) -> list[socket.socket]:
    """Returns sockets that listen on one port: one per address, or one for all addresses of the host (see `Listener`).
    Raises `ConfigError` if the port is taken."""
    try:
        if interface is not None or all(ipaddress.ip_address(address).is_loopback for address in addresses):
            return _bind(addresses, port, interface)
        if socket.has_dualstack_ipv6():
            return [socket.create_server(("", port), family=socket.AF_INET6, backlog=_BACKLOG, dualstack_ipv6=True)]
        return [socket.create_server(("", port), backlog=_BACKLOG)]
    except OSError as error:
        advice = f"choose another port, or {opt('backend.port=null')} for any free one."
        raise ConfigError(Conflict("backend.port", str(error), port, advice)) from error


def _bind(addresses: Sequence[str], port: int, interface: str | None, attempts: int = 10) -> list[socket.socket]:
    with contextlib.ExitStack() as stack:
        servers: list[socket.socket] = []
        common = port
        try:
            for address in addresses:
                target: tuple[Any, ...] = address, common
                if interface is not None and _is_link_local(address):
                    target = *target, 0, socket.if_nametoindex(interface)
                family = socket.AF_INET6 if ":" in address else socket.AF_INET
                server = stack.enter_context(socket.create_server(target, family=family, backlog=_BACKLOG))
                common = server.getsockname()[1]
                servers.append(server)
        except OSError:
            if port or attempts == 1:
                raise
            # The port that the system chose for one address is taken on another.
            return _bind(addresses, port, interface, attempts - 1)
        stack.pop_all()
        return servers


def plain_address(address: str) -> str:
    """Returns an address without the prefix of IPv4 in IPv6, and without a zone."""
    return address.removeprefix("::ffff:").partition("%")[0]
