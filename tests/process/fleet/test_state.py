from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from fleet.errors import DamagedStateError, FleetError, NotFoundError, NotReadyError, UsageError
from fleet.state import FleetRecord, Store, caller, replace_hosts, state_root
from provision.gce.options import GceOptions
from provision.ledger import cost_usd
from provision.local.options import LocalOptions
from provision.model import FleetSpec, Host, Instance, InstanceState
from provision.provider import Journal
from tests.next_steps import next_lines
from tests.program import Program

HOST = Host("worker-0", "127.0.0.2", 4022, "me", "ssh-ed25519 AAAA", "local.1", "127.0.0.2")
SPEC = FleetSpec(name="demo", provider="local", workers=1, options=LocalOptions())
RENTED = FleetSpec("demo", "gce", 2, packages=("tensorflow",), options=GceOptions(zones=("us-central1-a",), gpus=2))
INSTANCE = Instance("worker-0", "demo", "17", InstanceState.RUNNING, "us-central1-a", 0.5, 3600.0, 7200.0)
LATER = Instance(
    "worker-1", "demo", "18", InstanceState.STOPPED, "us-central1-a", 1.0, 3600.0, 10800.0, stopped_usd_h=0.05
)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "state")


def test_a_record_is_read_as_it_was_written(store: Store) -> None:
    directory = store.fleet("demo")
    directory.create()
    record = replace_hosts(FleetRecord(spec=RENTED, created_at=12.5), [HOST], [INSTANCE, LATER])
    assert (record.price_usd_h, record.delete_at) == (0.55, 7200.0)
    directory.write(record)
    assert directory.read() == record
    assert (directory.path / "known_hosts").read_text() == "local.1 ssh-ed25519 AAAA\n"
    assert store.names() == ["demo"]
    values = json.loads((directory.path / "fleet.json").read_text())
    values["new_field"] = values["spec"]["new_field"] = 1  # of a later version
    (directory.path / "fleet.json").write_text(json.dumps(values))
    assert directory.read() == record


@pytest.mark.parametrize(
    "damage",
    [
        *("", "[]", '{"spec": {"name": "x"}}'),
        '{"spec": {"name": "x", "provider": "local", "workers": 2, "packages": [1]}, "created_at": 1}',
        '{"spec": {"name": "x", "provider": "gce", "workers": 2, "options": {"gpus": {}}}, "created_at": 1}',
        '{"spec": {"name": "x", "provider": "local", "workers": 2}, "created_at": "now"}',
    ],
)
def test_a_damaged_record_is_an_error_with_a_next_step(store: Store, damage: str) -> None:
    directory = store.fleet("demo")
    directory.create()
    (directory.path / "fleet.json").write_text(damage)
    with pytest.raises(FleetError, match="cannot be read") as caught:
        directory.read()
    assert "fleet down" in next_lines(caught.value)


def test_the_key_is_created_once_and_only_its_owner_can_read_it(store: Store) -> None:
    directory = store.fleet("demo")
    public = directory.create()
    assert stat.S_IMODE(directory.key.stat().st_mode) == 0o600
    assert stat.S_IMODE(directory.path.stat().st_mode) == 0o700
    assert directory.create() == public
    printed = subprocess.run(
        ["ssh-keygen", "-y", "-f", str(directory.key)], check=True, capture_output=True, text=True
    ).stdout
    assert printed.split()[:2] == public.split()[:2]


def test_missing_and_half_made_fleets_are_distinguished(store: Store) -> None:
    with pytest.raises(NotFoundError, match="fleet 'demo' does not exist") as missing:
        store.need("demo")
    assert next_lines(missing.value) == "fleet up --workers 2"
    store.fleet("demo").create()
    with pytest.raises(NotReadyError, match="has not finished"):
        store.need("demo")


def test_a_line_that_a_crash_cut_off_takes_no_other_with_it(store: Store) -> None:
    directory = store.fleet("demo")
    directory.create()
    directory.intend("create", request_id="1")
    with (directory.path / "journal").open("ab") as journal:
        journal.write(b'{"at": 1.0, "intent": "del')
    directory.intend("delete_fleet")
    intents = directory.intents()
    assert [(entry["intent"], entry.get("request_id")) for entry in intents] == [
        ("create", "1"),
        ("delete_fleet", None),
    ]


def test_concurrent_processes_create_one_owner(store: Store) -> None:
    assert re.fullmatch("[a-z2-7]{8}", store.owner(keep=False))
    assert not store.root.exists()
    code = (
        "import sys; from pathlib import Path; from fleet.state import Store; print(Store(Path(sys.argv[1])).owner())"
    )
    command = [sys.executable, "-c", code, str(store.root)]
    others = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    owners = {other.communicate(timeout=30)[0].strip() for other in others} | {store.owner(), store.owner(keep=False)}
    assert len(owners) == 1
    assert re.fullmatch("[a-z2-7]{8}", owners.pop())


def test_a_damaged_owner_is_not_replaced_silently(store: Store) -> None:
    store.owner()
    (store.root / "owner").write_text("Who?\n")
    for keep in (True, False):
        with pytest.raises(DamagedStateError, match="is damaged") as damage:
            store.owner(keep=keep)
        assert next_lines(damage.value) == f"mv {store.root}/owner {store.root}/owner.damaged\nfleet gc"


def test_a_journal_that_cannot_be_used_is_reported(store: Store) -> None:
    directory = store.fleet("demo")
    directory.create()
    (directory.path / "journal").mkdir()
    with pytest.raises(DamagedStateError, match="the journal of fleet 'demo' cannot be read"):
        directory.intents()
    with pytest.raises(UsageError, match="cannot be written"):
        directory.intend("create")
    (directory.path / "journal").rmdir()
    (directory.path / "journal").symlink_to("/dev/full")
    with pytest.raises(UsageError, match="cannot be written") as refusal:
        directory.intend("create")
    assert refusal.value.hint == "free space on its disk"


def test_each_list_of_instances_that_differs_is_in_the_journal(store: Store) -> None:
    directory = store.fleet("demo")
    directory.observe([INSTANCE], 3600.0)  # of an unknown fleet
    directory.create()
    for instances, now in (([], 3600.0), ([INSTANCE], 3700.0), ([INSTANCE], 3800.0), ([], 5400.0), ([], 5500.0)):
        directory.observe(instances, now)
    assert [entry["at"] for entry in directory.intents()] == [3700.0, 5400.0]
    assert cost_usd(directory.intervals(), 10**9) == pytest.approx(0.25)


def test_a_second_process_gets_the_holder_of_a_lock_which_ends_with_its_process(store: Store) -> None:
    code = (
        "import sys; from pathlib import Path; from fleet.state import Store\n"
        "from fleet.errors import NotReadyError\n"
        "try:\n with Store(Path(sys.argv[1])).lock('demo', 'down', wait_s=0.1): os._exit(9)\n"
        "except NotReadyError as e: print(e.message)\n"
    )
    command = [sys.executable, "-c", f"import os; {code}", str(store.root)]
    with store.lock("demo", "up"):
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        assert f"process {os.getpid()}" in output
        assert "`fleet up`" in output
    assert subprocess.run(command, check=False).returncode == 9
    with store.lock("demo", "down", wait_s=0):
        pass


def test_without_a_usable_home_directory_a_fixed_state_directory_is_offered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.write_text("")
    monkeypatch.setenv("HOME", str(home))
    offered = set()
    for _ in range(2):  # the next command can find what the first one wrote
        with pytest.raises(UsageError, match="cannot be written") as error, Store(home / "state").lock("demo", "up"):
            pass
        offered.add(next_lines(error.value))
    assert offered == {f"export FLEET_STATE_DIR=/var/tmp/fleet-{os.getuid()}"}


def test_commands_that_only_read_report_a_state_directory_that_is_a_file(program: Program) -> None:
    program.state.write_text("")
    for command in (["status"], ["down", "--yes"]):
        ran = program.run(*command, code=2, env={"FLEET_STATE_DIR": str(program.state / "fleet")})
        assert ran.err.startswith("error: the state directory ")
        assert "cannot be read\ncause: Not a directory" in ran.err


def test_the_journal_of_the_providers_knows_the_fleets_of_this_directory_alone(store: Store) -> None:
    journal: Journal = store
    journal.intend("demo", "insert", request_id="1")
    assert (journal.intents("demo"), store.names()) == ([], [])
    store.fleet("demo").create()
    journal.intend("demo", "insert", request_id="2")
    assert [entry["request_id"] for entry in journal.intents("demo")] == ["2"]


def test_the_state_directory_can_be_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for given in (str(tmp_path / "state"), "state"):
        monkeypatch.setenv("FLEET_STATE_DIR", given)
        assert state_root() == tmp_path / "state"
    monkeypatch.delenv("FLEET_STATE_DIR")
    assert state_root().name == "fleet"


def test_a_user_without_a_name_has_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> str:
        raise KeyError

    monkeypatch.setattr("getpass.getuser", refuse)
    assert caller().startswith(f"{os.getuid()}-")
