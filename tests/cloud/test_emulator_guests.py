"""The emulator's calls to the guests on its instances, and the emulator started by hand."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.emulator import Emulator
from tests.emulator import library as compute
from tests.emulator.catalog.images import Image, find_image
from tests.emulator.client import IMAGE, PROJECT, Client, spot, t4
from tests.emulator.disk import Disk
from tests.emulator.guests import GuestSpec, Publish
from tests.program import wait_for

ZONE = "us-central1-a"
AT_ZONE: dict[str, Any] = {"project": PROJECT, "zone": ZONE}
ROOT = Path(__file__).parents[3]


class Guest:
    """Records the calls, and ends after a delay."""

    def __init__(self, spec: GuestSpec, publish: Publish, may_end: threading.Event) -> None:
        self.spec = spec
        self.publish = publish
        self.done: list[str] = []
        self.addresses: list[str] = []
        self.items: Mapping[str, str] = {}
        self.admitted = True
        self._may_end = may_end

    def boot(self, external: str = "") -> None:
        self.done.append("boot")
        self.addresses.append(external)
        self.publish("hostkeys", "ssh-ed25519", "AAAA")

    def update_metadata(self, items: Mapping[str, str], os_login_keys: Mapping[str, list[str]]) -> None:
        self.items = items

    def admit(self, decide: Callable[[], bool]) -> None:
        self.admitted = decide()

    def serial(self) -> str:
        return "console"

    def warn_of_preemption(self) -> None:
        self.done.append("warn")

    def announce_maintenance(self, event: str) -> None:
        self.done.append(event)

    def plan_maintenance(self, values: Mapping[str, str]) -> None:
        self.done.append(values["window_start_time"])

    def follow_clock(self) -> None:
        self.done.append("follow clock")

    def power_off(self) -> None:
        assert self._may_end.wait(90)
        self.done.append("power off")

    def restart(self) -> None:
        """Do nothing."""

    def save(self, directory: Path) -> None:
        pass

    def remove(self) -> None:
        assert self._may_end.wait(90)
        self.done.append("remove")


class Stage:
    """An emulator with these guests."""

    def __init__(self, directory: Path) -> None:
        self.may_end = threading.Event()
        self.may_end.set()
        self.guests: list[Guest] = []
        self.emulator = Emulator(operation_s=0.0, guests=self.make, directory=directory, ssh_port=2222)
        self.client = Client(self.emulator.url)

    def make(self, spec: GuestSpec, publish: Publish) -> Guest:
        self.guests.append(Guest(spec, publish, self.may_end))
        return self.guests[-1]

    def status(self) -> list[str]:
        return [instance.status for instance in self.client.all_instances().values()]


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(tmp_path)
    with stage.emulator:
        yield stage
        assert stage.emulator.state()["violations"] == []


def test_a_guest_gets_the_properties_of_the_request(stage: Stage, tmp_path: Path) -> None:
    made = stage.client.create("demo", **t4(2))
    [guest] = stage.guests
    assert guest.spec == GuestSpec(
        name="demo",
        zone=ZONE,
        project=PROJECT,
        id=str(made.id),
        address=made.network_interfaces[0].network_i_p,
        ssh_port=2222,
        gpus=2,
        gpu="nvidia-tesla-t4",
        metadata={"enable-guest-attributes": "TRUE", "ssh-keys": "fleet:k"},
        directory=tmp_path / str(made.id),
        image=find_image(IMAGE),
        hosts=stage.emulator.cloud.google_hosts,
        certificate=stage.emulator.cloud.google_certificate,
        clock=stage.emulator.clock,
    )
    query = compute.GetGuestAttributesInstanceRequest(instance="demo", query_path="hostkeys/", **AT_ZONE)
    assert stage.client.instances.get_guest_attributes(request=query).query_value.items[0].value == "AAAA"
    assert stage.client.instances.get_serial_port_output(instance="demo", **AT_ZONE).contents == "console"


def test_an_instance_is_deleted_after_its_guest_has_ended(stage: Stage) -> None:
    stage.client.create("demo")
    stage.may_end.clear()
    deletion = stage.client.instances.delete_unary(instance="demo", **AT_ZONE)
    wait_for("the deletion to begin", lambda: stage.status() == ["STOPPING"])
    with pytest.raises(TimeoutError, match="operations still run"):
        stage.emulator.settle(timeout_s=0.1)
    stage.may_end.set()
    stage.client.wait(deletion)
    assert (stage.status(), stage.guests[0].done) == ([], ["boot", "remove"])


def test_a_guest_is_kept_over_stop_and_start(stage: Stage) -> None:
    stage.client.create("demo")
    stage.client.wait(stage.client.instances.stop_unary(instance="demo", **AT_ZONE))
    assert stage.status() == ["TERMINATED"]
    stage.client.wait(stage.client.instances.start_unary(instance="demo", **AT_ZONE))
    [guest] = stage.guests
    assert guest.done == ["boot", "power off", "boot"]
    assert len({guest.spec.address, *guest.addresses}) == 3  # another external address after each start


def test_a_guest_is_warned_before_a_preemption(stage: Stage) -> None:
    stage.client.create("demo", scheduling=spot())
    stage.emulator.preempt("demo", grace_s=30)
    stage.emulator.cloud.join(90)
    assert stage.guests[0].done == ["boot", "warn"]
    stage.emulator.clock.advance(31)
    stage.emulator.settle()
    assert (stage.status(), stage.guests[0].done) == ([], ["boot", "warn", "remove"])


def test_firewall_rules_decide_which_guests_answer_the_caller(stage: Stage) -> None:
    stage.client.create("demo")
    [guest] = stage.guests
    admitted: list[bool] = [guest.admitted]

    def allow(source: str, port: str) -> None:
        rule = compute.Firewall(
            name=f"allow-{port}", allowed=[compute.Allowed(I_p_protocol="tcp", ports=[port])], source_ranges=[source]
        )
        stage.client.wait(stage.client.of("Firewalls").insert_unary(project=PROJECT, firewall_resource=rule))
        stage.emulator.cloud.join(90)
        admitted.append(guest.admitted)

    allow("0.0.0.0/0", "22")
    allow("198.51.100.0/24", "2000-2222")
    for address in ("198.51.100.7", "203.0.113.7"):
        stage.emulator.set_caller(address)
        admitted.append(guest.admitted)
    assert admitted == [False, False, False, True, False]


def test_a_guest_gets_changes_of_its_metadata_and_of_the_project_keys(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = stage.client.create("demo")
    blocked = compute.Metadata(items=[compute.Items(key="block-project-ssh-keys", value="TRUE")])
    stage.client.create("closed", metadata=blocked)
    projects = stage.client.of("Projects")
    metadata = projects.get(project=PROJECT).common_instance_metadata
    metadata.items.append(compute.Items(key="ssh-keys", value="you:key"))
    stage.client.wait(projects.set_common_instance_metadata_unary(project=PROJECT, metadata_resource=metadata))
    stage.emulator.cloud.join(90)
    assert [guest.items.get("ssh-keys") for guest in stage.guests] == ["fleet:k\nyou:key", None]

    current = compute.Metadata(items=[compute.Items(key="more", value="1")], fingerprint=made.metadata.fingerprint)
    stage.client.wait(
        stage.client.instances.set_metadata_unary(instance="demo", metadata_resource=current, **AT_ZONE)
    )
    stage.emulator.cloud.join(90)
    assert stage.guests[0].items == {"more": "1", "ssh-keys": "you:key"}

    late: list[Callable[[], None]] = []
    cloud = stage.emulator.cloud
    monkeypatch.setattr(cloud, "aside", late.append)
    for value in ("2", "3"):
        cloud.instances[ZONE, "demo"].body["metadata"]["items"] = [{"key": "more", "value": value}]
        cloud.update_guests(cloud.instances[ZONE, "demo"])
    for update in reversed(late):
        update()
    assert stage.guests[0].items["more"] == "3"


def test_guests_end_with_a_failed_bulk_insert_a_reset_and_the_emulator(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    with stage.emulator:
        stage.emulator.faults.add("partial", created=1)
        stage.client.wait(stage.client.bulk_insert(["worker-0", "worker-1"], ZONE))
        stage.client.create("demo")
        stage.emulator.reset()
        stage.client.create("other")
    assert [guest.done for guest in stage.guests] == [["boot", "remove"]] * 3


def test_the_emulator_names_a_missing_requirement_before_it_is_ready(tmp_path: Path) -> None:
    (tmp_path / "googleapiclient").mkdir()
    (tmp_path / "googleapiclient" / "__init__.py").touch()  # without documents
    words = [sys.executable, "-m", "tests.emulator", "--no-guests"]
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    ran = subprocess.run(words, env=env, cwd=ROOT, capture_output=True, text=True, timeout=90, check=False)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "install the development tools: pip install -e '.[dev]'" in ran.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_emulator_starts_by_hand_and_ends_with_a_signal(number: int) -> None:
    words = [sys.executable, "-m", "tests.emulator", "--no-guests", "--operation-s", "0", "--project", "other"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            assert process.stdout is not None
            ready, url, *project = process.stdout.readline().split()
            assert (ready, project) == ("ready:", ["project", "other"])
            with urllib.request.urlopen(f"{url}/compute/v1/projects/other/zones", timeout=60) as answer:
                assert answer.status == 200
            process.send_signal(number)
            assert process.wait(90) == 0
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("gpu", "driver", "code", "words"),
    [
        ("nvidia-tesla-t4", "open", 0, "Tesla T4"),
        ("nvidia-tesla-v100", "proprietary", 0, "Tesla V100"),
        ("nvidia-tesla-v100", "open", 6, "No devices were found"),
        ("nvidia-tesla-p100", "open", 6, "No devices were found"),
        ("nvidia-tesla-p4", "open", 6, "No devices were found"),
        ("nvidia-tesla-t4", "", None, ""),
    ],
)
def test_nvidia_smi_lists_the_gpus_that_the_driver_of_the_image_supports(
    tmp_path: Path, gpu: str, driver: str, code: int | None, words: str
) -> None:
    image = Image("p", "f", "n", 50, driver)
    spec = GuestSpec("w", ZONE, PROJECT, "1", "127.0.0.9", 22, 1, gpu, {}, tmp_path / "w", image)
    Disk(spec, Path(sys.executable)).prepare()
    program = tmp_path / "w" / "bin" / "nvidia-smi"
    assert program.exists() == (code is not None)
    if code is not None:
        ran = subprocess.run([sys.executable, program], capture_output=True, text=True, check=False)
        assert ran.returncode == code
        assert words in ran.stdout


def test_sessions_of_a_guest_have_the_variables_hosts_and_index_of_its_spec(tmp_path: Path) -> None:
    texts = []
    for index in (True, False):
        directory = tmp_path / str(index)
        hosts, variables = ("127.0.0.5 index.example",), {"HTTPS_PROXY": "http://127.0.0.5:3128"}
        spec = GuestSpec(
            "w", ZONE, PROJECT, "1", "127.0.0.9", 22, 0, "", {}, directory, None, variables, hosts, index
        )
        disk = Disk(spec, Path(sys.executable))
        disk.prepare()
        disk.write_boot_script(tmp_path / "packages", "127.0.0.9:80")
        assert (directory / "etc" / "hosts").read_text().splitlines()[-1] == "127.0.0.5 index.example"
        texts.append((directory / "etc" / "ssh" / "sshd_config").read_text())
        assert '"HTTPS_PROXY=http://127.0.0.5:3128"' in texts[-1]
    assert ["PIP_FIND_LINKS" in text for text in texts] == [True, False]
