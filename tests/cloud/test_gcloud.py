"""Google's command line accepts the emulator, and logs in on its instances."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from fleet.state import Store
from provision.gce.access import iap
from provision.gce.options import GceOptions
from provision.gce.provider import GceProvider
from provision.keys import generate_ed25519
from provision.model import FleetSpec
from provision.provider import ProviderError
from tests.cloud import gcloud_server
from tests.cloud.histories import QUICK
from tests.emulator import Emulator
from tests.emulator.governance import DEFAULT_ACCOUNT
from tests.emulator.guests import SshGuests, obstacle
from tests.emulator.storage import Storage
from tests.next_steps import command_lines
from tests.program import wait_for

pytestmark = [
    pytest.mark.wire,
    pytest.mark.skipif(shutil.which("gcloud") is None, reason="gcloud is not installed"),
]
ZONE = "us-central1-a"
GPU = ("--machine-type=n1-standard-4", "--accelerator=type=nvidia-tesla-t4,count=1", "--maintenance-policy=TERMINATE")
APIS = ("CLOUDBILLING", "IAM", "ORGPOLICY", "SERVICEUSAGE")
OVERRIDE = "CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE"
IMAGE = ("--image-family=debian-12", "--image-project=debian-cloud")


class Server:
    """A process that forks gcloud commands; `directory` has their settings and is their home directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
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
        self.process = subprocess.Popen(
            ["gcloud"],
            env={**self.environment, "CLOUDSDK_PYTHON_ARGS": f"-S {program}"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, endpoint: str, *words: str) -> subprocess.CompletedProcess[str]:
        """Run gcloud with these arguments and this endpoint of all APIs."""
        assert self.process.stdin
        assert self.process.stdout
        files = [self.directory / "output", self.directory / "error"]
        for file in files:
            file.write_text("")
        overrides = {f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{name}": f"{endpoint}/" for name in APIS}
        overrides["CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE"] = f"{endpoint}/storage/v1/"
        environment = {**self.environment, **overrides, OVERRIDE: f"{endpoint}/compute/v1/"}
        request = {"arguments": words, "environment": environment, "files": [str(file) for file in files]}
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        code = int(self.process.stdout.readline())
        return subprocess.CompletedProcess(words, code, *(file.read_text() for file in files))

    def close(self) -> None:
        """End the server."""
        self.process.communicate()


@dataclass
class Gcloud:
    """The gcloud command line, configured for an emulator.

    Attributes:
        emulator: The emulator that it calls.
        server: Forks its commands.
    """

    emulator: Emulator
    server: Server

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run `gcloud compute` with these arguments."""
        return self.server.run(self.emulator.url, "compute", *words)

    def query(self, *words: str) -> Any:
        """Return the JSON output of a command, which must succeed."""
        done = self.run(*words, "--format=json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout or "null")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("gcloud"))
    yield server
    server.close()


@pytest.fixture
def gcloud(server: Server) -> Iterator[Gcloud]:
    with Emulator(operation_s=0.02) as emulator:
        yield Gcloud(emulator, server)
        assert emulator.state()["violations"] == []


def test_an_instance_from_creation_to_deletion(gcloud: Gcloud) -> None:
    attributes = "--metadata=enable-guest-attributes=TRUE"
    [made] = gcloud.query("instances", "create", "demo", f"--zone={ZONE}", *GPU, attributes)
    gcloud.query("instances", "add-metadata", "demo", f"--zone={ZONE}", "--metadata=more=1")
    described = gcloud.query("instances", "describe", "demo", f"--zone={ZONE}")
    assert made["id"] == described["id"]
    assert described["guestAccelerators"][0]["acceleratorCount"] == 1
    assert {item["key"]: item["value"] for item in described["metadata"]["items"]} == {
        "enable-guest-attributes": "TRUE",
        "more": "1",
    }
    [key] = gcloud.query("instances", "get-guest-attributes", "demo", f"--zone={ZONE}", "--query-path=hostkeys/")
    assert (key["namespace"], key["key"]) == ("hostkeys", "ssh-ed25519")

    gcloud.query("instances", "delete", "demo", f"--zone={ZONE}")
    assert gcloud.emulator.state()["instances"] == gcloud.emulator.state()["disks"] == []


def test_machines_with_their_disks_network_interfaces_and_images(gcloud: Gcloud) -> None:
    c4 = ("--machine-type=c4-standard-4", *IMAGE)
    refused = gcloud.run("instances", "create", "old", f"--zone={ZONE}", *c4, "--boot-disk-type=pd-balanced")
    assert "pd-balanced disk type cannot be used by c4-standard-4 machine type" in " ".join(refused.stderr.split())
    interface = ("--network-interface=nic-type=GVNIC", "--boot-disk-type=hyperdisk-balanced")
    [made] = gcloud.query("instances", "create", "new", f"--zone={ZONE}", *c4, *interface)
    assert made["networkInterfaces"][0]["nicType"] == "GVNIC"
    [disk] = gcloud.query("disks", "list")
    assert disk["type"].endswith("/hyperdisk-balanced")
    arm = ("--image-family=ubuntu-2404-lts-arm64", "--image-project=ubuntu-os-cloud")
    refused = gcloud.run("instances", "create", "arm", f"--zone={ZONE}", "--machine-type=n2-standard-4", *arm)
    assert "(ARM64) is not compatible with machine type" in " ".join(refused.stderr.split())
    gcloud.query("instances", "create", "arm", f"--zone={ZONE}", "--machine-type=t2a-standard-4", *arm)
    described = gcloud.query("machine-types", "describe", "t2a-standard-4", f"--zone={ZONE}")
    assert described["architecture"] == "ARM64"


def test_reservations_and_the_instances_that_use_them(gcloud: Gcloud, tmp_path: Path) -> None:
    specific = ("--vm-count=2", "--machine-type=n1-standard-4", "--require-specific-reservation")
    gcloud.query("reservations", "create", "r1", f"--zone={ZONE}", *specific)
    affinity = ("--machine-type=n1-standard-4", "--reservation-affinity=specific", "--reservation=r1", *IMAGE)
    gcloud.query("instances", "create", "mine", f"--zone={ZONE}", *affinity)
    store = Store(tmp_path / "state")
    store.fleet("demo").create()
    cloud = GceOptions(project="proj-1", endpoint=gcloud.emulator.url, reservation="r1")
    provider = GceProvider(store.owner(), "me", store.journal, cloud, QUICK)
    with pytest.raises(ProviderError, match="room for 1 instance, 2 requested") as caught:
        provider.quote(FleetSpec("demo", "gce", 2, options=cloud), ["worker-0", "worker-1"])
    done = gcloud.server.run(gcloud.emulator.url, *shlex.split(command_lines(caught.value))[1:])
    assert (done.returncode, "r1" in done.stdout) == (0, True), done.stderr
    provider.create(FleetSpec("demo", "gce", 1, "ssh-ed25519 AAAA me", options=cloud), ["worker-0"], lambda *_: None)
    [made] = gcloud.query("instances", "list", "--filter=labels.fleet=demo")
    assert made["reservationAffinity"]["values"] == ["r1"]
    described = gcloud.query("reservations", "describe", "r1", f"--zone={ZONE}")
    assert described["specificReservation"]["inUseCount"] == "2"
    assert provider.delete_fleet("demo", lambda *_: None) == []
    gcloud.query("instances", "delete", "mine", f"--zone={ZONE}")
    gcloud.query("reservations", "delete", "r1", f"--zone={ZONE}")


def test_flex_start_vms_of_a_fleet_are_shown(gcloud: Gcloud, tmp_path: Path) -> None:
    store = Store(tmp_path / "state")
    store.fleet("demo").create()
    cloud = GceOptions(
        project="proj-1", endpoint=gcloud.emulator.url, zones=(ZONE,), gpu="t4", gpus=1, flex_start=True
    )
    provider = GceProvider(store.owner(), "me", store.journal, cloud, QUICK)
    provider.create(FleetSpec("demo", "gce", 1, "ssh-ed25519 AAAA me", options=cloud), ["worker-0"], lambda *_: None)
    [made] = gcloud.query("instances", "list", "--filter=labels.fleet=demo")
    described = gcloud.query("instances", "describe", made["name"], f"--zone={ZONE}")
    assert described["scheduling"]["provisioningModel"] == "FLEX_START"
    assert gcloud.run("instances", "delete", made["name"], f"--zone={ZONE}").returncode == 0
    assert provider.delete_fleet("demo", lambda *_: None) == []


def test_gcloud_creates_and_describes_every_field_that_fleet_sets(gcloud: Gcloud) -> None:
    group = ("resource-policies", "create", "group-placement", "close", "--region=us-central1")
    gcloud.query(*group, "--collocation=collocated")
    gcloud.query(
        *("instances", "create", "demo", f"--zone={ZONE}", "--machine-type=n2-standard-4", *IMAGE),
        *("--labels=team=vision", "--tags=web,db", "--metadata=note=1,enable-oslogin=TRUE"),
        *("--network-interface=network=default,nic-type=GVNIC", "--boot-disk-type=pd-ssd", "--boot-disk-size=30GB"),
        *("--scopes=storage-ro", f"--service-account={DEFAULT_ACCOUNT}", "--resource-policies=close"),
        *("--max-run-duration=1h", "--instance-termination-action=DELETE"),
        *("--maintenance-policy=TERMINATE", "--no-restart-on-failure"),
    )
    made = gcloud.query("instances", "describe", "demo", f"--zone={ZONE}")
    assert (made["labels"], made["tags"]["items"]) == ({"team": "vision"}, ["web", "db"])
    assert {item["key"]: item["value"] for item in made["metadata"]["items"]} == {
        "note": "1",
        "enable-oslogin": "TRUE",
    }
    assert made["networkInterfaces"][0]["nicType"] == "GVNIC"
    [account] = made["serviceAccounts"]
    assert account == {"email": DEFAULT_ACCOUNT, "scopes": ["https://www.googleapis.com/auth/devstorage.read_only"]}
    assert made["resourcePolicies"][0].endswith("/regions/us-central1/resourcePolicies/close")
    assert made["scheduling"]["maxRunDuration"] == {"seconds": "3600"}
    assert (made["scheduling"]["onHostMaintenance"], made["scheduling"]["automaticRestart"]) == ("TERMINATE", False)
    assert made["resourceStatus"]["scheduling"]["terminationTimestamp"]
    [disk] = gcloud.query("disks", "list")
    assert (disk["sizeGb"], disk["type"].rsplit("/", 1)[-1]) == ("30", "pd-ssd")
    used = gcloud.run("resource-policies", "delete", "close", "--region=us-central1")
    assert "is already being used by" in used.stderr


def test_local_ssds_are_counted_and_discarded(gcloud: Gcloud) -> None:
    create = ("instances", "create", "demo", f"--zone={ZONE}", "--machine-type=n2-standard-16", *IMAGE)
    disk = "--local-ssd=interface=nvme"
    refused = gcloud.run(*create, disk)
    assert "should be one of [0, 2, 4, 8, 16, 24], while [1] is requested" in " ".join(refused.stderr.split())
    end = ("--max-run-duration=1h", "--instance-termination-action=STOP")
    assert gcloud.run(*create, disk, disk, *end).returncode != 0
    [made] = gcloud.query(*create, disk, disk, *end, "--discard-local-ssds-at-termination-timestamp=true")
    assert [each["type"] for each in made["disks"]] == ["PERSISTENT", "SCRATCH", "SCRATCH"]
    assert gcloud.run("instances", "stop", "demo", f"--zone={ZONE}").returncode != 0
    assert gcloud.run("instances", "stop", "demo", f"--zone={ZONE}", "--discard-local-ssd=true").returncode == 0


def test_an_instance_ends_at_its_termination_time(gcloud: Gcloud) -> None:
    end = gcloud.emulator.clock.now() + 3600.0
    at = datetime.fromtimestamp(end, timezone.utc).isoformat(timespec="seconds")
    demo = ("instances", "create", "demo", f"--zone={ZONE}", *IMAGE, f"--termination-time={at}")
    gcloud.query(*demo, "--instance-termination-action=DELETE")
    [made] = gcloud.query("instances", "list")
    shown = datetime.fromisoformat(
        made["resourceStatus"]["scheduling"]["terminationTimestamp"].replace("Z", "+00:00")
    )
    assert shown.timestamp() == int(end)
    both = gcloud.run(*demo, "--instance-termination-action=DELETE", "--max-run-duration=1h")
    assert both.returncode != 0
    gcloud.emulator.clock.advance(3700)
    gcloud.emulator.settle()
    assert gcloud.query("instances", "list") == []


def test_gcloud_shows_every_field_of_a_fleet(gcloud: Gcloud, tmp_path: Path) -> None:
    store = Store(tmp_path / "state")
    store.fleet("demo").create()
    cloud = GceOptions(
        project="proj-1",
        endpoint=gcloud.emulator.url,
        zones=(ZONE,),
        machine_type="c4-standard-4",
        placement="compact",
        labels=("team=vision",),
        tags=("web",),
        metadata=("note=1",),
        setup="true",
        disk_gb=30,
        scopes=("https://www.googleapis.com/auth/devstorage.read_only",),
    )
    provider = GceProvider(store.owner(), "me", store.journal, cloud, QUICK)
    provider.create(FleetSpec("demo", "gce", 2, "ssh-ed25519 AAAA me", options=cloud), ["worker-0"], lambda *_: None)
    [listed] = gcloud.query("instances", "list", "--filter=labels.team=vision AND tags.items=web")
    made = gcloud.query("instances", "describe", listed["name"], f"--zone={ZONE}")
    stem = f"demo-{store.owner()}"
    marks = {"team": "vision", "fleet": "demo", "fleet-owner": store.owner(), "fleet-user": "me"}
    assert (made["labels"], made["tags"]["items"]) == (marks, [stem, "web"])
    items = {item["key"]: item["value"] for item in made["metadata"]["items"]}
    assert (items["note"], items["fleet-setup"], items["ssh-keys"]) == ("1", "true", "fleet:ssh-ed25519 AAAA me")
    assert (items["enable-oslogin"], items["enable-guest-attributes"]) == ("FALSE", "TRUE")
    assert made["networkInterfaces"][0]["nicType"] == "GVNIC"
    assert [account["scopes"] for account in made["serviceAccounts"]] == [list(cloud.scopes)]
    assert made["scheduling"]["maxRunDuration"] == {"seconds": "604800"}
    [policy] = gcloud.query("resource-policies", "list", f"--filter=name={stem}-compact")
    assert (policy["groupPlacementPolicy"], made["resourcePolicies"]) == (
        {"collocation": "COLLOCATED"},
        [policy["selfLink"]],
    )
    [disk] = gcloud.query("disks", "list")
    assert (disk["sizeGb"], disk["type"].rsplit("/", 1)[-1], disk["labels"]) == ("30", "hyperdisk-balanced", marks)
    assert provider.delete_fleet("demo", lambda *_: None) == []
    assert gcloud.query("resource-policies", "list") == []


def test_gcloud_lists_the_zones_that_answer(gcloud: Gcloud) -> None:
    for zone in (ZONE, "us-west4-a"):
        gcloud.query("instances", "create", f"in-{zone}", f"--zone={zone}", *IMAGE)
    gcloud.emulator.set_outage(ZONE)
    listed = gcloud.run("instances", "list", "--format=value(name)")
    assert listed.stdout.split() == ["in-us-west4-a"]
    assert ZONE in listed.stderr


def test_bulk_creation_operations_and_deletion_in_one_batch(gcloud: Gcloud) -> None:
    names = "--predefined-names=worker-0,worker-1"
    gcloud.query("instances", "bulk", "create", names, f"--zone={ZONE}", "--machine-type=n1-standard-4", *IMAGE)
    region = ("--name-pattern=other-#", "--count=2", "--region=us-west4")
    gcloud.query("instances", "bulk", "create", *region, "--machine-type=e2-small", *IMAGE)
    assert gcloud.emulator.state()["instances"] == ["other-1", "other-2", "worker-0", "worker-1"]

    operations = gcloud.query("operations", "list", "--filter=operationType=insert", f"--zones={ZONE}")
    assert sorted(operation["targetLink"].rsplit("/", 1)[-1] for operation in operations) == ["worker-0", "worker-1"]
    gcloud.query("instances", "delete", "worker-0", "worker-1", f"--zone={ZONE}")
    state = gcloud.emulator.state()
    assert state["instances"] == ["other-1", "other-2"]
    assert state["calls"]["batch.compute.instances.delete"] == 2


def test_gcloud_lists_and_deletes_the_instances_of_a_fleet(gcloud: Gcloud, tmp_path: Path) -> None:
    store = Store(tmp_path / "state")
    store.fleet("demo").create()
    cloud = GceOptions(project="proj-1", endpoint=gcloud.emulator.url, zones=(ZONE,), gpu="t4", gpus=2, spot=True)
    provider = GceProvider(store.owner(), "me", store.journal, cloud, QUICK)
    spec = FleetSpec("demo", "gce", 2, "ssh-ed25519 AAAA me", options=cloud)
    provider.create(spec, ["worker-0", "worker-1"], lambda *_: None)
    names = [f"demo-{store.owner()}-worker-{index}" for index in range(2)]
    listed = gcloud.query("instances", "list", "--filter=labels.fleet=demo AND status=RUNNING")
    assert [instance["name"] for instance in listed] == names
    first = listed[0]
    assert first["machineType"].endswith("/n1-standard-8")
    assert first["guestAccelerators"][0]["acceleratorCount"] == 2
    assert first["scheduling"]["provisioningModel"] == "SPOT"
    assert first["scheduling"]["maxRunDuration"] == {"seconds": "604800"}
    assert first["id"] in {instance.id for instance in provider.list("demo")}
    assert gcloud.run("instances", "delete", names[0], "--zone", ZONE).returncode == 0
    assert [instance.name for instance in provider.list("demo")] == ["worker-1"]
    assert "was deleted" in provider.termination_reasons("demo", ["worker-0"])["worker-0"]
    assert provider.delete_fleet("demo", lambda *_: None) == []
    assert gcloud.query("instances", "list") == []
    assert gcloud.query("firewall-rules", "list") == []


def test_gcloud_shows_the_image_of_a_host_and_boots_from_it(gcloud: Gcloud, tmp_path: Path) -> None:
    store = Store(tmp_path / "state")
    store.fleet("bake").create()
    cloud = GceOptions(project="proj-1", endpoint=gcloud.emulator.url, zones=(ZONE,), setup="true", disk_gb=20)
    provider = GceProvider(store.owner(), "me", store.journal, cloud, QUICK)
    plan = provider.plan_image(FleetSpec("bake", "gce", 2, "ssh-ed25519 AAAA me", options=cloud))
    provider.create(plan.host, ["worker-0"], lambda *_: None)
    disk = f"bake-{store.owner()}-worker-0"
    used = ("images", "create", "mine", f"--source-disk={disk}", f"--source-disk-zone={ZONE}")
    assert "is already being used by" in gcloud.run(*used).stderr
    gcloud.query(*used, "--force")
    made = provider.bake(plan.host, plan.image, lambda *_: None)
    gcloud.query("instances", "delete", disk, f"--zone={ZONE}")

    [listed] = gcloud.query("images", "list", "--no-standard-images", "--filter=labels.fleet-image:*")
    described = gcloud.query("images", "describe", made.name)
    assert (described["id"], described["labels"]) == (listed["id"], listed["labels"])
    assert (described["status"], described["diskSizeGb"]) == ("READY", "20")
    assert described["sourceDisk"].endswith(f"/zones/{ZONE}/disks/{disk}")
    assert described["labels"]["fleet-owner"] == store.owner()
    small = gcloud.run("instances", "create", "demo", f"--zone={ZONE}", f"--image={made.name}", "--boot-disk-size=10")
    assert "cannot be smaller than the image size (20 GB)" in small.stderr
    gcloud.query("instances", "create", "demo", f"--zone={ZONE}", f"--image={made.name}")
    [booted] = gcloud.query("disks", "list")
    assert (booted["sourceImageId"], booted["sizeGb"]) == (described["id"], "20")
    gcloud.query("images", "add-labels", "mine", "--labels=team=vision")
    assert gcloud.query("images", "describe", "mine")["labels"] == {"team": "vision"}
    gcloud.query("images", "delete", "mine", made.name)
    assert gcloud.emulator.state()["images"] == []
    assert provider.delete_fleet("bake", lambda *_: None) == []


def test_the_commands_of_the_first_run_show_a_fleet(gcloud: Gcloud, tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "gce" / "first-run.md").read_text()
    store = Store(tmp_path / "state")
    store.fleet("default").create()
    cloud = GceOptions(project="proj-1", endpoint=gcloud.emulator.url, zones=(ZONE,))
    provider = GceProvider(store.owner(), "me", store.journal, cloud, QUICK)
    spec = FleetSpec("default", "gce", 1, "ssh-ed25519 AAAA me", options=cloud)
    provider.create(spec, ["worker-0"], lambda *_: None)
    lines = [line for line in page.splitlines() if line.startswith("$ gcloud ")]
    assert len(lines) == 6
    for line in lines:
        words = shlex.split(line.replace("OWNER", store.owner()).replace("=ZONE", f"={ZONE}"))
        assert words[:3] == ["$", "gcloud", "compute"]
        done = gcloud.run(*words[3:])
        assert done.returncode == 0, done.stderr
        assert "get-serial-port-output" in words or done.stdout
    assert provider.delete_fleet("default", lambda *_: None) == []


def test_the_commands_of_doctor_fix_what_is_missing(gcloud: Gcloud, tmp_path: Path) -> None:
    governance = gcloud.emulator.cloud.governance
    governance.policies["compute.requireShieldedVm"] = {"rules": [{"enforce": True}]}
    governance.policies["compute.managed.requireShieldedVm"] = {"rules": [{"enforce": True}]}
    governance.disabled.update(("iam.googleapis.com", "cloudbilling.googleapis.com"))
    scopes = ("https://www.googleapis.com/auth/devstorage.read_only",)
    cloud = GceOptions(project="proj-1", endpoint=gcloud.emulator.url, zones=(ZONE,), scopes=scopes)
    provider = GceProvider("k3jq7xab", "me", Store(tmp_path).journal, cloud, QUICK)
    fixed = []
    for _ in range(2):  # a constraint and the managed one are lifted one after the other
        for finding in provider.doctor():
            if not finding.ok:
                fixed.append(finding.subject)
                _, *words = shlex.split(command_lines(finding))
                done = gcloud.server.run(gcloud.emulator.url, *words)
                assert done.returncode == 0, done.stderr
    assert sorted(fixed) == ["Secure Boot", "Secure Boot", "billing", "prices", "service account"]
    assert all(finding.ok for finding in provider.doctor())


def test_the_commands_for_a_missing_cloud_nat_create_it(gcloud: Gcloud, tmp_path: Path) -> None:
    cloud = GceOptions(project="proj-1", endpoint=gcloud.emulator.url, zones=(ZONE,), external=False)
    provider = GceProvider("k3jq7xab", "me", Store(tmp_path).journal, cloud, QUICK)
    for expected in (False, True):
        [finding] = [each for each in provider.doctor() if each.subject == "Cloud NAT"]
        assert finding.ok is expected
        for line in command_lines(finding).splitlines():
            done = gcloud.server.run(gcloud.emulator.url, *shlex.split(line)[1:])
            assert done.returncode == 0, done.stderr


def test_the_login_of_gcloud_is_recognized(server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("HOME", "CLOUDSDK_CONFIG", "CLOUDSDK_AUTH_ACCESS_TOKEN"):
        monkeypatch.setenv(name, server.environment[name])
    assert iap.access_token() == "emulated"
    monkeypatch.delenv("CLOUDSDK_AUTH_ACCESS_TOKEN")
    with pytest.raises(ProviderError, match="is not logged in") as caught:
        iap.access_token()
    assert command_lines(caught.value) == "gcloud auth login"


def test_the_commands_of_doctor_create_a_bucket_and_grant_its_roles(gcloud: Gcloud, tmp_path: Path) -> None:
    given = {"zones": (ZONE,), "bucket": "gs://training-data"}
    cloud = GceProvider.change(GceOptions(project="proj-1", endpoint=gcloud.emulator.url), given)
    provider = GceProvider("k3jq7xab", "me", Store(tmp_path).journal, cloud, QUICK)
    results = []
    for _ in range(3):
        [finding] = [finding for finding in provider.doctor() if finding.subject == "bucket"]
        results.append(finding.ok)
        for line in command_lines(finding).splitlines():
            done = gcloud.server.run(gcloud.emulator.url, *shlex.split(line)[1:])
            assert done.returncode == 0, done.stderr
    assert results == [False, None, True]


def test_gcloud_copies_files_to_a_bucket_and_back(gcloud: Gcloud, tmp_path: Path) -> None:
    gcloud.emulator.cloud.part(Storage).create("bkt")
    sent, received = tmp_path / "sent", tmp_path / "received"
    sent.write_bytes(bytes(range(256)))
    for source, target in ((str(sent), "gs://bkt/run1/data"), ("gs://bkt/run1/data", str(received))):
        done = gcloud.server.run(gcloud.emulator.url, "storage", "cp", source, target)
        assert done.returncode == 0, done.stderr
    assert received.read_bytes() == sent.read_bytes()


def test_gcloud_changes_firewall_rules(gcloud: Gcloud, tmp_path: Path) -> None:
    rule = ("--allow=tcp:22", "--source-ranges=203.0.113.7/32", "--target-tags=demo")
    gcloud.query("firewall-rules", "create", "demo-ssh", *rule)
    [listed] = gcloud.query("firewall-rules", "list")
    assert (listed["name"], listed["sourceRanges"]) == ("demo-ssh", ["203.0.113.7/32"])
    closed = ("--action=deny", "--rules=tcp:22", "--priority=5", "--source-ranges=127.0.0.0/8")
    gcloud.query("firewall-rules", "create", "closed", *closed)
    cloud = GceOptions(project="proj-1", endpoint=gcloud.emulator.url)
    provider = GceProvider("k3jq7xab", "me", Store(tmp_path).journal, cloud, QUICK)
    [finding] = [each for each in provider.doctor() if each.subject == "firewall"]
    assert finding.message.startswith("firewall rule closed denies SSH")
    shown = gcloud.server.run(gcloud.emulator.url, *shlex.split(command_lines(finding))[1:])
    assert "closed" in shown.stdout, shown.stderr
    gcloud.query("firewall-rules", "delete", "demo-ssh", "closed")
    assert gcloud.emulator.state()["firewalls"] == []


def test_gcloud_shows_a_stockout(gcloud: Gcloud) -> None:
    gcloud.emulator.faults.add("stockout")
    done = gcloud.run("instances", "create", "demo", f"--zone={ZONE}", *GPU)
    assert done.returncode == 1
    error = " ".join(done.stderr.split())
    assert "code: ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS" in error
    assert "with 1 nvidia-tesla-t4 accelerator(s) is currently unavailable in the us-central1-a zone" in error
    assert gcloud.emulator.state()["instances"] == []


@pytest.fixture
def guests() -> Iterator[Path]:
    """Return a directory for guests, which other users must be able to enter."""
    reason = obstacle()
    if reason:
        pytest.skip(reason)
    with tempfile.TemporaryDirectory(prefix="fleet-gcloud-") as directory:
        Path(directory).chmod(0o755)
        yield Path(directory)


def test_gcloud_logs_in_and_stores_the_host_key(guests: Path, server: Server, tmp_path: Path) -> None:
    pair = generate_ed25519("test")
    key = tmp_path / "key"
    key.touch(0o600)
    key.write_text(pair.private)
    key.with_suffix(".pub").write_text(f"{pair.public}\n")
    with Emulator(operation_s=0.02, guests=SshGuests(guests), directory=guests) as emulator:
        gcloud = Gcloud(emulator, server)
        attributes = "--metadata=enable-guest-attributes=TRUE"
        gcloud.query("firewall-rules", "create", "ssh", "--allow=tcp:22", "--source-ranges=127.0.0.1/32")
        [made] = gcloud.query("instances", "create", "demo", f"--zone={ZONE}", *GPU, attributes)
        wait_for("the host key", lambda: bool(emulator.cloud.instance(ZONE, "demo").attributes))
        strict = (f"--ssh-key-file={key}", "--strict-host-key-checking=yes")
        done = gcloud.run("ssh", "fleet@demo", f"--zone={ZONE}", *strict, "--command=hostname; whoami")
        assert done.stdout.split() == ["demo", "fleet"], done.stderr
        known_hosts = (server.directory / ".ssh" / "google_compute_known_hosts").read_text()
        assert known_hosts.startswith(f"compute.{made['id']} ssh-ed25519 ")

        gcloud.query("instances", "delete", "demo", f"--zone={ZONE}")
        refused = gcloud.run("ssh", "fleet@demo", f"--zone={ZONE}", *strict, "--command=hostname")
        assert refused.returncode != 0
        assert list(guests.glob(made["id"])) == []
        assert emulator.state()["violations"] == []
