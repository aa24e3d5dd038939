from __future__ import annotations

import time
from dataclasses import replace

from fleet.console.reports import format_report
from fleet.events import (
    Checked,
    JobsCompared,
    JobsListed,
    Note,
    OrphansFound,
    ResultsAtRisk,
    ResultsFound,
    SmokeTested,
)
from tests.unit.fleet.console.samples import HOSTS_CHECKED, ONE_OF_EACH, ORPHAN, PLACE, QUOTED, STORED


def test_a_price_is_a_table_of_the_first_places() -> None:
    assert format_report(QUOTED).splitlines() == [
        "fleet demo: 2 spot instances, project my-project, all in the first of these",
        "zones with capacity",
        "  ZONE           MACHINE                            USD/H EACH  USD/H ALL",
        "  us-central1-a  n1-standard-4 + 1 nvidia-tesla-t4       0.540      1.080",
        "  us-central1-b  n1-standard-4 + 1 nvidia-tesla-t4     unknown    unknown",
        "  us-central1-c  n1-standard-4 + 1 nvidia-tesla-t4       0.540      1.080",
        "  us-central1-d  n1-standard-4 + 1 nvidia-tesla-t4       0.540      1.080",
        "  us-central1-e  n1-standard-4 + 1 nvidia-tesla-t4       0.540      1.080",
        "  and 2 more",
        "spot prices, estimate of 2026-11-01 from the Cloud Billing catalog, with disks",
        "and addresses, without network traffic; each is deleted automatically 8 h after",
        "its start",
        "The quota leaves room for 2 more.",
    ]


def test_a_limit_of_the_cost_is_shown_with_the_price() -> None:
    event = replace(QUOTED, max_cost_usd=5.0, delete_after_s=2 * 3600)
    assert "limit $5.00: at most $2.16 for these\n" in format_report(event)
    assert "limit $5.00: at most $2.16 for these, after $1.50 for the other instances\n" in format_report(
        replace(event, used_usd=1.5)
    )


def test_a_price_in_one_place_on_demand_and_without_an_end() -> None:
    event = replace(QUOTED, offers=QUOTED.offers[:1], spot=False, delete_after_s=0, notes=(), project="", instances=1)
    text = format_report(event)
    assert text.startswith("fleet demo: 1 instance\n")
    assert text.splitlines()[1].split() == ["ZONE", "MACHINE", "USD/H"]
    assert "more" not in text
    assert "on-demand prices" in text
    assert "Flex-start prices" in format_report(replace(QUOTED, spot=False, flex_start=True))
    assert "only fleet down deletes them" in " ".join(text.split())


def test_what_is_left_is_a_table_and_says_what_stays() -> None:
    mine = replace(ORPHAN, created_at=time.time() - 7200)
    other = replace(ORPHAN, kind="disk", name="x", user="bob-desk", created_at=0.0, cost_usd=0.0, to_delete=False)
    assert format_report(OrphansFound((mine, other))).splitlines() == [
        "2 orphaned resources:",
        "  KIND      NAME                    ZONE           USER        AGE   COST",
        "  instance  demo-k3b7x2qa-worker-0  us-central1-a  ann-laptop  2 h  $1.08",
        "  disk      x                       us-central1-a  bob-desk",
        "1 owned by other users; --all includes them",
    ]
    assert "and 60 more" in format_report(OrphansFound((ORPHAN,) * 100))
    assert format_report(OrphansFound(())) == "no orphaned resources found\n"


def test_images_are_kept_and_have_a_price_per_month() -> None:
    image = replace(ORPHAN, kind="image", name="fleet-9a3c", zone="", created_at=0.0, cost_usd=0.0, price_usd_h=0.001)
    image = replace(image, size_gb=14.6, to_delete=False)
    assert format_report(OrphansFound((ORPHAN, image))).splitlines()[0] == "1 orphaned resource and 1 image:"
    assert format_report(OrphansFound((image,))).splitlines() == [
        "1 image:",
        "  KIND   NAME        USER           SIZE  PER MONTH",
        "  image  fleet-9a3c  ann-laptop  14.6 GB      $0.73",
        "1 image kept; --images deletes yours, with --all those of other users, too",
    ]


def test_age_and_cost_stay_where_there_is_no_room_for_all() -> None:
    mine = replace(ORPHAN, created_at=time.time() - 7200)
    rule = replace(mine, kind="firewall rule", name="a-fleet-with-a-long-name-k3b7x2qa-internal", cost_usd=0.0)
    head = format_report(OrphansFound((mine, rule))).splitlines()[1]
    assert head.split() == ["KIND", "NAME", "USER", "AGE", "COST"]


def test_a_finding_has_the_command_that_fixes_it_on_a_separate_line() -> None:
    fix = "gcloud services enable compute.googleapis.com --project my-project-with-a-long-name"
    long = "the Compute Engine API is disabled in project my-project-with-a-long-name"
    assert format_report(Checked("gce", "api", False, long, fix)).splitlines() == [
        "missing  api: the Compute Engine API is disabled in project",
        "         my-project-with-a-long-name",
        f"         {fix}",
    ]
    assert format_report(Checked("gce", "api", True, "it is enabled", "")) == "ok       api: it is enabled\n"
    text = format_report(
        Checked("gce", "bucket", False, "it does not exist", fix, "create it, " * 9 + "or name another")
    )
    assert max(len(line) for line in text.splitlines() if fix not in line) <= 80
    assert f"         {fix}\n" in text


def test_a_check_is_a_table_and_what_follows_from_it() -> None:
    assert format_report(HOSTS_CHECKED).splitlines() == [
        "fleet demo: 2 hosts",
        "  HOST      PYTHON  TENSORFLOW  KERAS   TF-KERAS  GPUS          DISK  MEMORY",
        "  worker-0  3.11.7  2.21.0      3.15.1  none      2 x Tesla T4   50G     15G",
        "  worker-1",
        "warning  the hosts differ",
        "problem  worker-1: there is no Rscript on this host",
        "problem  task.py:3 imports pandas, which worker-0 lacks",
    ]
    fit = replace(HOSTS_CHECKED, hosts=HOSTS_CHECKED.hosts[:1], problems=(), warnings=())
    assert format_report(fit).splitlines()[-1] == "ok       hosts are ready"


def test_a_trial_shows_the_last_lines_of_what_failed() -> None:
    failed = SmokeTested(
        "worker-0", False, "the script exited with code 1 after 3 s", ("x" * 100, "\x1b[2JValueError")
    )
    assert format_report(failed).splitlines() == [
        "failed   worker-0: the script exited with code 1 after 3 s",
        "   " + "x" * 77,
        "   ValueError",
    ]
    fine = SmokeTested("worker-0", True, "the script made its first step after 3 s")
    assert format_report(fine) == "ok       worker-0: the script made its first step after 3 s\n"


def test_no_line_is_longer_than_a_terminal_and_none_has_control_characters() -> None:
    for event in ONE_OF_EACH:
        assert all(len(line) <= 80 for line in format_report(event).splitlines())
        for width in (40, 80, 120):
            commands = (getattr(event, "next_step", ""), getattr(event, "command", ""))  # are never wrapped
            lines = [line for line in format_report(event, width).splitlines() if not line.endswith(commands)]
            assert all(len(line) <= width for line in lines), lines
    nasty = replace(ORPHAN, name="\x1b[2Jx")
    assert "\x1b" not in format_report(OrphansFound((nasty,)))
    assert format_report(Note("x")) == ""


def test_paths_that_do_not_fit_the_terminal_lack_their_first_directories() -> None:
    root = "/home/ann/.local/state/fleet/local/default-worker-0/fleet/jobs/20260102-101112-ab3d/worker-0"
    model = replace(PLACE, path=f"{root}/model", files=1)
    event = ResultsFound("demo", "j-1", 3, 2_000_000, (model, replace(model, kind="files", path=f"{root}/work")), "x")
    assert format_report(event, 80).splitlines()[1:3] == [
        "  1.2 MiB, 1 file  worker-0:…/fleet/jobs/20260102-101112-ab3d/worker-0/model",
        "  1.2 MiB, 1 file  worker-0:…/fleet/jobs/20260102-101112-ab3d/worker-0/work",
    ]
    assert format_report(event, 20).splitlines()[1] == "  1.2 MiB, 1 file  worker-0:…/model"
    assert f"worker-0:{root}/model\n" in format_report(event)  # not a terminal
    at_risk = ResultsAtRisk("demo", (replace(STORED, paths=(f"worker-0:{root}",)),))
    assert "\n  worker-0:…/jobs/20260102-101112-ab3d/worker-0\n" in format_report(at_risk, 50)
    assert f"\n  worker-0:{root}\n" in format_report(at_risk)


def test_sizes_of_results_are_aligned() -> None:
    event = ResultsFound("demo", "j-1", 3, 2_000_000, (PLACE, replace(PLACE, files=13)), "fleet pull j-1")
    assert format_report(event).splitlines()[1:3] == [
        f"  1.2 MiB, 2 files   worker-0:{PLACE.path}",
        f"  1.2 MiB, 13 files  worker-0:{PLACE.path}",
    ]


def jobs_listed(width: int) -> list[str]:
    run = replace(
        STORED, name="baseline", arguments=("--epochs", "5"), duration_s=75.0, metrics={"loss": 0.34, "val_loss": 0.5}
    )
    pulled = replace(STORED, job="20260101-101112-ab3d", pulled="yes", directory="/home/ann/results/x", state="")
    return format_report(JobsListed("demo", (run, pulled), ()), width).splitlines()


def test_metrics_that_do_not_fit_are_left_out_whole() -> None:
    metrics = {"loss": 0.34, "val_loss": 0.5, "val_accuracy": 0.9}
    run = replace(STORED, name="baseline", duration_s=75.0, metrics=metrics)
    assert format_report(JobsListed("demo", (run,), ())).splitlines()[2].endswith("  val_loss 0.5000")


def test_a_job_takes_two_lines_at_80_columns_and_one_at_160() -> None:
    assert jobs_listed(80) == [
        "fleet demo: 2 jobs",
        "  JOB                   NAME      STATE      TIME  METRICS",
        "  20260102-101112-ab3d  baseline  succeeded  1:15  val_loss 0.5000, loss 0.3400",
        "    task.py --epochs 5; 1.2 MiB on worker-0",
        "  20260101-101112-ab3d            unknown",
        "    task.py; /home/ann/results/x",
    ]
    wide = jobs_listed(160)
    assert wide[-1].split() == ["20260101-101112-ab3d", "unknown", "task.py", "/home/ann/results/x"]
    assert "val_loss 0.5000, loss 0.3400  task.py --epochs 5  1.2 MiB on worker-0" in wide[2]
    assert max(map(len, wide)) <= 160


def test_compared_jobs_have_an_asterisk_where_they_differ() -> None:
    first = replace(
        STORED,
        name="baseline",
        arguments=("--epochs", "5", "--learning-rate", "0.001", "--batch", "64"),
        duration_s=75.0,
        metrics={"loss": 0.34},
        steps_per_s=12.3,
        code_sha256="3f2a" * 16,
        versions={"tensorflow": "2.21.0"},
    )
    second = replace(first, job="20260101-101112-ab3d", name=None, arguments=("--epochs", "9"), metrics={"auc": 0.9})
    assert format_report(JobsCompared("demo", first, second)).splitlines() == [
        "  JOB         20260102-101112-ab3d              20260101-101112-ab3d",
        "* name        baseline                          -",
        "  script      task.py                           task.py",
        "* arguments   --epochs 5 --learning-rate 0.001  --epochs 9",
        "              --batch 64",
        "  code        3f2a3f2a3f2a                      3f2a3f2a3f2a",
        "  state       succeeded                         succeeded",
        "  time        1:15                              1:15",
        "  steps/s     12.3                              12.3",
        "  tensorflow  2.21.0                            2.21.0",
        "* loss        0.3400                            -",
        "* auc         -                                 0.9000",
    ]
    unknown = format_report(JobsCompared("demo", STORED, replace(STORED, job="j")), 160)
    assert "*" not in unknown
    assert max(map(len, unknown.splitlines())) <= 160
