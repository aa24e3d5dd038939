from __future__ import annotations

import os

import pytest

from train.agent.host.facts import parse_gpus
from train.agent.host.processes import Stat, identify, is_alive, parse_stat
from train.agent.host.usage import CpuMeter, GpuMeter, parse_gpu_use
from train.agent.protocol.records import Gpu, GpuUse

# As nvidia-smi prints with --format=csv,noheader,nounits.
LISTED = "0, Tesla T4, 15360, 535.183.01\n1, NVIDIA A100-SXM4-40GB, 40960, 535.183.01\n"
MIG = "0, NVIDIA H100 80GB HBM3, [N/A], 550.54.15\n"
BROKEN = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n"


def test_gpus_are_read() -> None:
    assert parse_gpus(LISTED) == [
        Gpu(0, "Tesla T4", 15360, "535.183.01"),
        Gpu(1, "NVIDIA A100-SXM4-40GB", 40960, "535.183.01"),
    ]
    assert parse_gpus(MIG) == [Gpu(0, "NVIDIA H100 80GB HBM3", 0, "550.54.15")]
    assert parse_gpus(BROKEN) == []


def test_the_use_of_gpus_is_read() -> None:
    assert parse_gpu_use(["0, 37, 1024", "1, [N/A], 5", "", "nonsense"]) == [GpuUse(0, 37.0, 1024)]


def test_the_newest_line_of_each_gpu_counts_however_output_is_cut() -> None:
    meter = GpuMeter()
    for byte in b"0, 1, 10\n1, 2, 20\n0, 3, 30\n1, 4":
        meter.feed(bytes([byte]))
    assert meter.read() == [GpuUse(0, 3.0, 30), GpuUse(1, 2.0, 20)]
    meter.feed(b"x" * 10000)
    meter.feed(b"\n1, 9, 90\n")
    assert meter.read() == [GpuUse(0, 3.0, 30), GpuUse(1, 9.0, 90)]


def test_a_command_with_blanks_and_parentheses_is_read_over() -> None:
    tail = " ".join(str(n) for n in range(4, 53))
    stat = parse_stat(f"42 (a) S (b) R 7 8 {tail}")
    assert (stat.pid, stat.state, stat.parent, stat.group) == (42, "R", 7, 8)
    with pytest.raises(ValueError, match="no line of"):
        parse_stat("")


def test_a_process_is_not_mistaken_for_a_later_one_of_its_number() -> None:
    this = identify(os.getpid())
    assert is_alive(this)
    assert not is_alive(this._replace(started=this.started + 1))
    assert not is_alive(this._replace(boot="another"))


def test_cpu_use_is_counted_between_two_readings() -> None:
    def table(**ticks: int) -> dict[int, Stat]:
        return {int(pid[1:]): Stat(int(pid[1:]), "R", 1, 1, count, 0, 100) for pid, count in ticks.items()}

    second = os.sysconf("SC_CLK_TCK")
    meter = CpuMeter()
    assert meter.read(table(p1=1000), {1}, 10.0)[0] == -1.0
    percent, memory = meter.read(table(p1=1000 + second, p2=second, p3=9999), {1, 2}, 12.0)
    assert percent == 100.0
    assert memory == 200 * os.sysconf("SC_PAGE_SIZE")
    assert meter.read(table(p2=second), {1, 2}, 14.0)[0] == 0.0
