"""Fleets of bare OpenSSH servers, which an inventory names."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.harness.accounting import open_accounting
from benchmarks.harness.hosts import Hosts
from benchmarks.harness.session import Session
from tests.wire.machines import Machine, lab


class Machines:
    """OpenSSH servers on given addresses, without a fleet.

    Args:
        session: Ends them.
        addresses: Addresses to listen on.
    """

    def __init__(self, session: Session, addresses: Sequence[str]) -> None:
        self._session = session
        self._directory = session.directory()
        self._ids: list[str] = []
        self._accounting = open_accounting(self._ids, self._directory.name)
        self._lab = session.enter(lab(self._directory))
        self.servers: list[Machine] = []
        for number, address in enumerate(addresses):
            self.servers.append(self._lab.machine(f"w{number}", address=address))
            self._ids.append(self.servers[-1].id)
            self._accounting.add(self._lab.processes[-1])

    def fleet(self, name: str, *, ports: Sequence[int] = (), prefix: Sequence[str] = ()) -> Hosts:
        """Create a fleet of the servers.

        Args:
            name: Its name.
            ports: Ports that lead to the servers; empty: their own.
            prefix: Command that runs each client.
        """
        routes = [f"Host w{number}\n  Port {port}\n" for number, port in enumerate(ports)]
        names = [server.name for server in self.servers]
        inventory = self._lab.inventory(*names, config=self._lab.config(*routes))
        return self._session.add(
            Hosts(
                self._session.directory(),
                name,
                ["--inventory", str(inventory), "--accept-new", "--yes"],
                prefix=prefix,
                accounting=self._accounting,
            )
        )
