"""This host's network addresses, and sockets that listen on them. Used by the handshake, and by whoever has to name the
trainer's addresses before it listens.
"""

from __future__ import annotations

import contextlib
import difflib
import ipaddress
import socket
from collections.abc import Sequence
from typing import Any

from collectx.errors import ConfigError

_BACKLOG = 1024


def local_addresses(interface: str | None) -> tuple[str, ...]:
    """This host's addresses that others may reach, best first: IPv4 before IPv6, what its name resolves to before the
    rest. Without any network, loopback.

    Args:
        interface: only that interface's, as `backend.interface` names it; loopback is allowed then.

    Raises:
        ConfigError: there is no such interface, or it has no address.
    """
    import psutil

    found = {
        name: [plain_address(entry.address) for entry in entries if entry.family in (socket.AF_INET, socket.AF_INET6)]
        for name, entries in psutil.net_if_addrs().items()
    }
    if interface is not None:
        if not found.get(interface):
            raise ConfigError([_no_such_interface(interface, sorted(name for name in found if found[name]))])
        # A link-local address of IPv6 says nothing to another host, which would have to name an interface of its own.
        local = {
            address for address in found[interface] if ":" in address and ipaddress.ip_address(address).is_link_local
        }
        return tuple(address for address in found[interface] if address not in local) or tuple(found[interface])
    up = {name for name, stats in psutil.net_if_stats().items() if stats.isup}
    usable = [
        address
        for name, addresses in found.items()
        if name in up
        for address in addresses
        if not (ip := ipaddress.ip_address(address)).is_loopback and not ip.is_link_local
    ]
    named = _resolved(socket.gethostname())
    usable.sort(key=lambda address: (":" in address, address not in named))
    return tuple(usable) or ("127.0.0.1",)


def _no_such_interface(interface: str, names: Sequence[str]) -> str:
    near = difflib.get_close_matches(interface, names, n=1)
    suggestion = f"; did you mean {near[0]}?" if near else ";"
    there = ", ".join(names)
    return f"backend.interface={interface}: no such network interface with an address{suggestion} (there are {there})."


def _resolved(name: str) -> set[str]:
    try:
        return {str(entry[4][0]) for entry in socket.getaddrinfo(name, None)}
    except OSError:
        return set()


def listening_sockets(addresses: Sequence[str], port: int, interface: str | None) -> list[socket.socket]:
    """What listens at one port: on each of these addresses, or one socket on all that the host has."""
    try:
        if interface is not None or all(ipaddress.ip_address(address).is_loopback for address in addresses):
            return _bound(addresses, port, interface)
        if socket.has_dualstack_ipv6():
            return [socket.create_server(("", port), family=socket.AF_INET6, backlog=_BACKLOG, dualstack_ipv6=True)]
        return [socket.create_server(("", port), backlog=_BACKLOG)]
    except OSError as error:
        raise ConfigError([f"backend.port={port}: {error}: choose another, or null: the system chooses."]) from error


def _bound(addresses: Sequence[str], port: int, interface: str | None, tries: int = 10) -> list[socket.socket]:
    with contextlib.ExitStack() as stack:
        servers: list[socket.socket] = []
        try:
            for address in addresses:
                place: tuple[Any, ...] = address, servers[0].getsockname()[1] if servers else port
                if interface is not None and ipaddress.ip_address(address).is_link_local and ":" in address:
                    place = *place, 0, socket.if_nametoindex(interface)
                family = socket.AF_INET6 if ":" in address else socket.AF_INET
                servers.append(stack.enter_context(socket.create_server(place, family=family, backlog=_BACKLOG)))
        except OSError:
            if port or tries == 1:
                raise
            # What the system has chosen for one address may be in use at another.
            return _bound(addresses, port, interface, tries - 1)
        stack.pop_all()
        return servers


def plain_address(address: str) -> str:
    """Without the prefix of IPv4 in IPv6, and without a zone."""
    return address.removeprefix("::ffff:").partition("%")[0]
