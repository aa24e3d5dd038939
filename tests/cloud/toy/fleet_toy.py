"""A provider in another package: it rents OpenSSH servers on this computer, each with a directory."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from provision.directories import make_directory, remove_directory
from provision.keys import generate_ed25519
from provision.local import processes, sshd
from provision.local.login import check_login
from provision.model import Finding, FleetSpec, Host, Instance, InstanceState, Offer, Quote
from provision.names import index_of
from provision.options import DURATION, TEXT, ProviderOptions, option
from provision.provider import ErrorKind, Progress, Provider, ProviderError, Site


@dataclass(frozen=True)
class ToyOptions(ProviderOptions):
    implementation: ClassVar[str] = "fleet_toy:ToyProvider"
    title: ClassVar[str] = "the toy shop"
    rents: ClassVar[bool] = True

    size: str = option("small", TEXT, "size", flags=("--toy-size",), help="Size: small or large.", group="Toys")
    lifetime_s: int = option(3600, DURATION, "lifetime", flags=("--toy-lifetime",), help="Lifetime.", group="Toys")
    shop: str = option("shop", TEXT, "shop", variables=("TOY_SHOP",), scope=True)

    @property
    def price_usd_h(self) -> float:
        return 0.02 if self.size == "large" else 0.01


class Toy(NamedTuple):
    """An instance, in ``ROOT/ID.json`` and ``ROOT/ID/``; port 0: it has not started yet, pid 0: it does not run."""

    instance: Instance
    port: int = 0
    pid: int = 0


class ToyProvider(Provider):
    name = "toy"

    def __init__(self, root: Path) -> None:
        self._root = root

    @classmethod
    def open(cls, options: ToyOptions, site: Site) -> ToyProvider:
        return cls(site.directory / "toy" / options.shop)

    def check(self, spec: FleetSpec) -> None:
        super().check(spec)
        if (size := ToyOptions.of(spec.options).size) not in ("small", "large"):
            raise ProviderError(ErrorKind.USAGE, f"unknown toy size {size!r}", again={"--toy-size": "small"})

    def quote(self, spec: FleetSpec, names: Sequence[str]) -> Quote:
        options = ToyOptions.of(spec.options)
        offer = Offer("toy-town", f"{options.size} toy", options.price_usd_h)
        return Quote(len(names), (offer,), delete_after_s=options.lifetime_s)

    def create(self, spec: FleetSpec, names: Sequence[str], progress: Progress) -> None:
        toys = {toy.instance.name: toy for toy in self._toys(spec.name)}
        for name in names:
            toy = toys.get(name) or Toy(_new_instance(spec, name))
            if toy.pid:
                continue
            self._write(toy)
            progress(name, "starting sshd")
            processes.end({toy.instance.id}, only_listeners=True)
            directory, address = self._prepare(toy, spec), sshd.loopback_address(spec.name, index_of(name))
            server = sshd.Server(str(sshd.find()), directory, toy.instance.id, address, check_login(), toy.port)
            server.wait()
            self._write(Toy(toy.instance, server.port, server.pid))
            progress(name, "ready")

    def list(self, fleet: str | None = None) -> list[Instance]:
        instances = [toy.instance for toy in self._toys(fleet)]
        return sorted(instances, key=lambda instance: (instance.fleet, index_of(instance.name)))

    def hosts(self, spec: FleetSpec, instances: Sequence[Instance]) -> Sequence[Host]:
        ports = {toy.instance.id: toy.port for toy in self._toys(spec.name) if toy.pid}
        hosts = []
        for instance in instances:
            if instance.id not in ports:
                message = f"{instance.name} in fleet {instance.fleet} is not running"
                raise ProviderError(ErrorKind.UNREACHABLE, message, next_steps=[("fleet", "up")])
            directory, address = self._root / instance.id, sshd.loopback_address(spec.name, index_of(instance.name))
            key = " ".join((directory / "host_key.pub").read_text().split()[:2])
            reach = (address, ports[instance.id], check_login(), key, f"toy.{instance.id}", address)
            hosts.append(Host(instance.name, *reach, python=spec.python, root=str(directory / "fleet")))
        return hosts

    def delete(self, instances: Sequence[Instance], progress: Progress) -> None:
        for instance in instances:
            progress(instance.name, "deleting")
            processes.end({instance.id})
            remove_directory(self._root / instance.id)
            (self._root / f"{instance.id}.json").unlink(missing_ok=True)
            progress(instance.name, "deleted")

    def extend(self, instances: Sequence[Instance], seconds: float, progress: Progress) -> None:
        ids, until = {instance.id for instance in instances}, time.time() + seconds
        for toy in self._toys(None):
            if toy.instance.id in ids:
                self._write(toy._replace(instance=replace(toy.instance, delete_at=until)))

    def doctor(self, workers: int = 1) -> Sequence[Finding]:
        return [Finding("sshd", sshd.find() is not None, f"the OpenSSH server is {sshd.find()}")]

    def _prepare(self, toy: Toy, spec: FleetSpec) -> Path:
        directory = self._root / toy.instance.id
        make_directory(directory)
        if not (directory / "host_key.pub").exists():
            pair = generate_ed25519("host key of a toy")
            files = {"host_key": pair.private, "authorized_keys": spec.public_key, "host_key.pub": pair.public}
            for name, text in files.items():
                (directory / name).touch(0o600)
                (directory / name).write_text(text)
        return directory

    def _write(self, toy: Toy) -> None:
        make_directory(self._root)
        values = {**asdict(toy.instance), "state": "starting"}
        (self._root / f"{toy.instance.id}.json").write_text(json.dumps([values, toy.port, toy.pid]))

    def _toys(self, fleet: str | None) -> Sequence[Toy]:
        toys = [_read(*json.loads(path.read_text())) for path in self._root.glob("*.json")]
        return [toy for toy in toys if fleet in (None, toy.instance.fleet)]


def _new_instance(spec: FleetSpec, name: str) -> Instance:
    now, options = time.time(), ToyOptions.of(spec.options)
    identity = (name, spec.name, uuid.uuid4().hex, InstanceState.STARTING, "toy-town")
    return Instance(*identity, options.price_usd_h, now, now + options.lifetime_s)


def _read(values: dict[str, Any], port: int, pid: int) -> Toy:
    pid = pid if processes.listens(pid, values["id"]) else 0
    state = "running" if pid else "stopped" if port else "starting"
    return Toy(Instance(**{**values, "state": InstanceState(state)}), port, pid)
