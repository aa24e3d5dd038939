"""Default quotas of a project."""

from __future__ import annotations

from tests.emulator.catalog.machines import ACCELERATORS

REGION_QUOTAS = {
    "CPUS": 1024.0,
    "PREEMPTIBLE_CPUS": 0.0,
    "A2_CPUS": 96.0,
    "N2_CPUS": 128.0,
    **{f"{series}_CPUS": 128.0 for series in ("C2", "C2D", "N2D", "T2A", "T2D")},
    "C3_CPUS": 512.0,
    "DISKS_TOTAL_GB": 40960.0,
    "SSD_TOTAL_GB": 40960.0,
    "HDB_TOTAL_GB": 40960.0,
    "LOCAL_SSD_TOTAL_GB": 40960.0,
    "PREEMPTIBLE_LOCAL_SSD_GB": 0.0,
    "IN_USE_ADDRESSES": 256.0,
    "STATIC_ADDRESSES": 8.0,
    "INSTANCES": 6000.0,
    **{prefix + gpu.quota: 128.0 for gpu in ACCELERATORS.values() if gpu.quota for prefix in ("", "PREEMPTIBLE_")},
}


PROJECT_QUOTAS = {
    "CPUS_ALL_REGIONS": 2048.0,
    "GPUS_ALL_REGIONS": 256.0,
    "FIREWALLS": 100.0,
    "IMAGES": 2000.0,
    "NETWORKS": 5.0,
}


NEW_PROJECT_QUOTAS = {
    "CPUS_ALL_REGIONS": 12.0,
    "GPUS_ALL_REGIONS": 0.0,
    "CPUS": 24.0,
    "DISKS_TOTAL_GB": 4096.0,
    "SSD_TOTAL_GB": 500.0,
    "HDB_TOTAL_GB": 500.0,
    "IN_USE_ADDRESSES": 8.0,
    **{prefix + gpu.quota: 1.0 for gpu in ACCELERATORS.values() if gpu.quota for prefix in ("", "PREEMPTIBLE_")},
}
"""Quotas of a new project with a billing account, as users report them; other quotas are as above.
"""
