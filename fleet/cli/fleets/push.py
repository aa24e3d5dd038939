"""The command `fleet push`: its options, and the request that they make."""

from __future__ import annotations

from typing import Annotated

from fleet.cli.options import Fleet, HostsOption, Output, OutputOption, argument, option
from fleet.cli.runtime import make_services, resolve_fleet, run_command


def push(
    files: Annotated[list[str], argument("FILE...", "Files and directories to copy.")],
    to: Annotated[
        str, option("--to", "Directory on the hosts: relative to the login directory, or absolute.", "DIR")
    ] = "fleet-files",
    worker: HostsOption = "all",
    fleet: Fleet = "",
    output: OutputOption = Output.AUTO,
) -> None:
    """Copy files from this computer to the hosts.

    Sends only what has changed. Each file gets its name on the host only when it is complete, and replaces a file of
    that name.

    Examples:
      fleet push images.tfrecord
      fleet push data/train data/test --to /mnt/data
      fleet push --worker 0 settings.json
    """
    from fleet.commands.fleets import push as verb

    request = verb.PushRequest(resolve_fleet(fleet), tuple(files), to, worker)
    run_command(request.fleet, output, lambda sink: verb.run(request, make_services(sink), sink))
