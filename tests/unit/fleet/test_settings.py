"""Settings from fleet.toml, the environment, and the command line, in their order of precedence."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fleet.errors import UsageError
from fleet.settings import Settings, find, list_keys, load

INVENTORIES = Path(__file__).parents[3] / "inventories"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "fleet.toml"


def loaded(file: Path, text: str) -> Settings:
    file.write_text(text)
    return load(file)


@pytest.mark.parametrize(
    ("text", "provider"),
    [
        ('[gce]\ngpu = "t4"', "gce"),
        ("[gce]\nspot = false", "gce"),
        ("[gce]\ndisk-size = 200\n[static]\ninventory = 'hosts'", None),
        ('[fleet]\nprovider = "local"\n[gce]\ngpu = "t4"', "local"),
        ("[static]\nlimit = 'gpu'", "static"),
        ("[gce]", None),
    ],
)
def test_settings_of_a_cloud_select_it_unless_the_file_sets_the_provider(
    file: Path, text: str, provider: str | None
) -> None:
    assert loaded(file, text).provider == provider


@pytest.mark.parametrize(
    ("text", "message", "then"),
    [
        ("[gce]\ngpus = 2", "unknown key 'gpus' in [gce]", "did you mean gpu?"),
        ("[gce]\nxyzzy = 2", "unknown key 'xyzzy' in [gce]", "remove it"),
        ("[gcp]\n", "unknown table [gcp]", "did you mean gce?"),
        ("workers = 2", "key 'workers' is not in a table", "write it below [fleet]"),
        ("fleet = 2", "fleet must be a table", "write [fleet] on a line of its own"),
        ("[gce\n", "is not valid TOML", "fix the syntax"),
        ("[fleet]\nworkers = '2'", "workers in [fleet] must be a whole number", ""),
        (
            "[fleet]\nindex-url = 'https://reader:hunter2@index/simple'",
            "index-url in [fleet] must not contain a password or token: write the login as user:${NAME}",
            "",
        ),
        ("[fleet]\npip-proxy = 'proxy:3128'", "pip-proxy in [fleet] must be a URL such as http://proxy", ""),
        ("[gce]\nspot = 1", "spot in [gce] must be true or false", ""),
        ("[gce]\nzones = 'us-central1'", "zones in [gce] must be a list of strings", ""),
        ("[gce]\nmax-duration = 'long'", "max-duration in [gce]: invalid duration 'long'", ""),
        ("[gce]\nmax-cost = -1", "max-cost in [gce] must be an amount in US dollars", ""),
        (
            "[gce]\nendpoint = 'https://evil.example'",
            "endpoint in [gce] must be a googleapis.com or loopback URL",
            "",
        ),
        (
            "[gce]\nendpoint = 'https://xgoogleapis.com'",
            "endpoint in [gce] must be a googleapis.com or loopback URL",
            "",
        ),
    ],
)
def test_each_mistake_is_one_message_with_the_file_and_the_key(
    file: Path, text: str, message: str, then: str
) -> None:
    with pytest.raises(UsageError) as caught:
        loaded(file, text)
    assert str(file) in caught.value.message
    assert message in caught.value.message
    assert then in caught.value.hint
    assert "hunter2" not in f"{caught.value.message}{caught.value.cause}{caught.value.hint}"


@pytest.mark.parametrize("url", ["https://compute-x.p.googleapis.com", "http://localhost:1", "http://[::1]:80"])
def test_endpoints_that_a_file_may_name(file: Path, url: str) -> None:
    assert loaded(file, f"[gce]\nendpoint = '{url}'").of("gce")["endpoint"] == url


def test_the_nearest_file_above_counts(tmp_path: Path) -> None:
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    assert find(inner) in (None, *(path / "fleet.toml" for path in tmp_path.parents))
    (tmp_path / "fleet.toml").touch()
    assert find(inner) == tmp_path / "fleet.toml"
    (inner / "fleet.toml").touch()
    assert find(inner) == inner / "fleet.toml"


def uncommented(text: str) -> str:
    """Return a template with its examples, lines ``# key = value``, uncommented."""
    return re.sub(r"^# (?=[a-z-]+ = )", "", text, flags=re.MULTILINE)


@pytest.mark.parametrize("name", ["gce", "local", "static"])
def test_a_template_can_be_used_as_it_is_and_with_all_of_its_examples(file: Path, name: str) -> None:
    text = (INVENTORIES / f"fleet.{name}.toml").read_text()
    assert loaded(file, text).provider == name
    assert loaded(file, uncommented(text)).provider == name


def test_the_templates_show_every_key() -> None:
    shown: dict[str, set[str]] = {}
    for template in INVENTORIES.glob("fleet.*.toml"):
        for line in uncommented(template.read_text()).splitlines():
            if line.startswith("["):
                table = shown.setdefault(line.strip("[]"), set())
            elif " = " in line and not line.startswith("#"):
                table.add(line.partition(" = ")[0])
    shown.pop("train")  # options of the command line; tests/unit/fleet/cli/test_options.py
    assert shown == {name: set(keys) for name, keys in list_keys().items() if name not in ("slurm", "pbs")}
