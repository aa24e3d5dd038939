from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import sys
from provision.gce.clients import client_class, types
assert client_class("RegionInstancesClient").__name__ == "RegionInstancesClient"
assert types().Instance(name="a").name == "a"
assert "google.cloud.compute_v1.services.target_grpc_proxies" not in sys.modules
from google.cloud import compute_v1
assert compute_v1.InstancesClient is client_class("InstancesClient")
assert compute_v1.TargetGrpcProxiesClient
import gc
assert gc.isenabled()
"""


def test_only_what_is_used_is_imported_and_the_package_stays_whole_for_others() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
