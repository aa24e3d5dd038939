"""Google's command line shows what fleet creates, runs the commands that fleet prints, and logs in on instances."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fleet.state import Store
from provision.gce.access import hosts
from provision.keys import generate_ed25519
from provision.provider import ProviderError
from tests.cloud import gcloud_server
from tests.cloud.conftest import Make, finding_of
from tests.emulator import Emulator
from tests.next_steps import command_lines
from tests.program import wait_for
from tests.wire.clouds import emulator_with_guests

pytestmark = [
    pytest.mark.wire,
    pytest.mark.skipif(shutil.which("gcloud") is None, reason="gcloud is not installed"),
]
ZONE = "us-central1-a"
APIS = ("CLOUDBILLING", "IAM", "ORGPOLICY", "SERVICEUSAGE")
DOCS = Path(__file__).parents[2] / "docs"


class Gcloud:
    """The gcloud command line, whose home is a directory; a process forks its commands."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.url = ""
        self.environment = {
            **os.environ,
            "HOME": str(directory),
            "CLOUDSDK_CONFIG": str(directory / "config"),
            "CLOUDSDK_CORE_PROJECT": "proj-1",
            "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
            "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING": "1",
            "CLOUDSDK_COMPONENT_MANAGER_DISABLE_UPDATE_CHECK": "1",
            "CLOUDSDK_AUTH_ACCESS_TOKEN": "emulated",
        }
        program = directory / "gcloud_server.py"  # the launcher splits its variable at spaces
        program.symlink_to(Path(gcloud_server.__file__))
        environment = {**self.environment, "CLOUDSDK_PYTHON_ARGS": f"-S {program}"}
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.server = subprocess.Popen(["gcloud"], env=environment, **pipes)

    def run(self, line: str) -> subprocess.CompletedProcess[str]:
        """Run a command line that begins with ``gcloud``."""
        assert self.server.stdin
        assert self.server.stdout
        files = [self.directory / "output", self.directory / "error"]
        for file in files:
            file.write_text("")
        overrides = {f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{name}": f"{self.url}/" for name in APIS}
        for name, path in (("STORAGE", "storage/v1"), ("COMPUTE", "compute/v1")):
            overrides[f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{name}"] = f"{self.url}/{path}/"
        program, *words = shlex.split(line)
        assert program == "gcloud"
        environment = {**self.environment, **overrides}
        request = {"arguments": words, "environment": environment, "files": [str(file) for file in files]}
        self.server.stdin.write(json.dumps(request) + "\n")
        self.server.stdin.flush()
        code = int(self.server.stdout.readline())
        return subprocess.CompletedProcess(words, code, *(file.read_text() for file in files))

    def query(self, line: str) -> Any:
        """Return the JSON output of a command, which must succeed."""
        done = self.run(f"gcloud compute {line} --format=json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout or "null")

    def run_steps(self, problem: Any) -> str:
        """Run the commands of an error or a finding, which must succeed; return their output."""
        output = ""
        for line in command_lines(problem).splitlines():
            done = self.run(line)
            assert done.returncode == 0, done.stderr
            output += done.stdout
        return output


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gcloud]:
    gcloud = Gcloud(tmp_path_factory.mktemp("gcloud"))
    yield gcloud
    gcloud.server.communicate()


@pytest.fixture
def gcloud(server: Gcloud, emulator: Emulator) -> Gcloud:
    """Return the command line with an emulator as its cloud."""
    server.url = emulator.url
    return server


def test_gcloud_shows_every_field_of_a_fleet_and_what_deletes_it(gcloud: Gcloud, make: Make, tmp_path: Path) -> None:
    provider, spec = make(
        machine_type="c4-standard-4",
        placement="compact",
        labels=("team=vision",),
        tags=("web",),
        metadata=("note=1",),
        setup="true",
        disk_gb=30,
        scopes=("https://www.googleapis.com/auth/devstorage.read_only",),
    )
    provider.create(spec, ["worker-0"], lambda *_: None)
    [made] = gcloud.query("instances list --filter='labels.team=vision AND tags.items=web AND status=RUNNING'")
    owner = Store(tmp_path / "state").owner()
    marks = {"team": "vision", "fleet": "demo", "fleet-owner": owner, "fleet-user": "me"}
    assert (made["labels"], made["tags"]["items"]) == (marks, [f"demo-{owner}", "web"])
    items = {item["key"]: item["value"] for item in made["metadata"]["items"]}
    assert (items["note"], items["fleet-setup"], items["ssh-keys"]) == ("1", "true", "fleet:ssh-ed25519 AAAA me")
    assert (items["enable-oslogin"], items["enable-guest-attributes"]) == ("FALSE", "TRUE")
    assert made["networkInterfaces"][0]["nicType"] == "GVNIC"
    assert made["scheduling"]["maxRunDuration"] == {"seconds": "604800"}
    [disk] = gcloud.query("disks list")
    assert (disk["sizeGb"], disk["type"].rsplit("/", 1)[-1], disk["labels"]) == ("30", "hyperdisk-balanced", marks)
    assert gcloud.run(f"gcloud compute instances delete {made['name']} --zone {ZONE}").returncode == 0
    assert "was deleted" in provider.termination_reasons("demo", ["worker-0"])["worker-0"]
    assert provider.delete_fleet("demo", lambda *_: None) == []
    assert gcloud.query("firewall-rules list") == gcloud.query("resource-policies list") == []


def test_the_commands_of_the_first_run_show_a_fleet(gcloud: Gcloud, make: Make, tmp_path: Path) -> None:
    provider, spec = make()
    Store(tmp_path / "state").fleet("default").create()
    provider.create(replace(spec, name="default"), ["worker-0"], lambda *_: None)
    page = (DOCS / "gce" / "first-run.md").read_text()
    lines = [line.removeprefix("$ ") for line in page.splitlines() if line.startswith("$ gcloud ")]
    assert len(lines) == 6
    for line in lines:
        done = gcloud.run(line.replace("OWNER", Store(tmp_path / "state").owner()).replace("=ZONE", f"={ZONE}"))
        assert done.returncode == 0, done.stderr
        assert "get-serial-port-output" in line or done.stdout
    assert provider.delete_fleet("default", lambda *_: None) == []


def test_the_commands_of_doctor_fix_what_is_missing(gcloud: Gcloud, emulator: Emulator, make: Make) -> None:
    governance = emulator.cloud.governance
    governance.policies["compute.requireShieldedVm"] = {"rules": [{"enforce": True}]}
    governance.policies["compute.managed.requireShieldedVm"] = {"rules": [{"enforce": True}]}
    governance.disabled.update(("iam.googleapis.com", "cloudbilling.googleapis.com"))
    scopes = ("https://www.googleapis.com/auth/devstorage.read_only",)
    provider, _ = make(scopes=scopes)
    fixed = []
    for _ in range(2):  # a constraint and the managed one are lifted one after the other
        for finding in provider.doctor():
            if not finding.ok:
                fixed.append(finding.subject)
                gcloud.run_steps(finding)
    assert sorted(fixed) == ["billing", "policies", "policies", "prices", "service account"]
    assert all(finding.ok for finding in provider.doctor())


def test_the_commands_of_doctor_create_what_is_missing(gcloud: Gcloud, make: Make) -> None:
    provider, _ = make(external=False)
    for ok in (False, True):
        finding = finding_of(provider, "Cloud NAT")
        assert finding.ok is ok
        gcloud.run_steps(finding)


def test_the_login_of_gcloud_is_recognized(server: Gcloud, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "CLOUDSDK_CONFIG", "CLOUDSDK_AUTH_ACCESS_TOKEN"):
        monkeypatch.setenv(name, server.environment[name])
    assert hosts.access_token() == "emulated"
    monkeypatch.delenv("CLOUDSDK_AUTH_ACCESS_TOKEN")
    with pytest.raises(ProviderError, match="is not logged in") as caught:
        hosts.access_token()
    assert command_lines(caught.value) == "gcloud auth login"


def test_gcloud_creates_an_instance_and_logs_in(
    server: Gcloud, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    pair = generate_ed25519("test")
    key = tmp_path / "key"
    key.touch(0o600)
    key.write_text(pair.private)
    key.with_suffix(".pub").write_text(f"{pair.public}\n")
    with emulator_with_guests(tmp_path_factory) as emulator:
        server.url = emulator.url
        server.query("firewall-rules create ssh --allow=tcp:22 --source-ranges=127.0.0.1/32")
        gpu = "--machine-type=n1-standard-4 --accelerator=type=nvidia-tesla-t4,count=1 --maintenance-policy=TERMINATE"
        attributes = "--metadata=enable-guest-attributes=TRUE"
        [made] = server.query(f"instances create demo --zone={ZONE} {gpu} {attributes}")
        wait_for("the host key", lambda: bool(emulator.cloud.instance(ZONE, "demo").attributes))
        strict = f"--ssh-key-file={key} --strict-host-key-checking=yes"
        done = server.run(f"gcloud compute ssh fleet@demo --zone={ZONE} {strict} --command='hostname; whoami'")
        assert done.stdout.split() == ["demo", "fleet"], done.stderr
        known_hosts = (server.directory / ".ssh" / "google_compute_known_hosts").read_text()
        assert known_hosts.startswith(f"compute.{made['id']} ssh-ed25519 ")
        server.query(f"instances delete demo --zone={ZONE}")
        state = emulator.state()
        assert (state["instances"], state["disks"], state["violations"]) == ([], [], [])
