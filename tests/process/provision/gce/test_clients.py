from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import sys
from provision.gce.rest.clients import client_class, types
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


TOGETHER = """
import builtins, threading
from provision.gce.rest.api import Api, Timing
api = Api("proj-1", "http://127.0.0.1:1", Timing(contact_s=0))
imported, real = [], builtins.__import__
def watched(name, *args, **more):
    held = name in sys.modules
    if threading.current_thread() is not threading.main_thread() and not held and not api._loading.locked():
        imported.append(name)
    return real(name, *args, **more)
builtins.__import__ = watched
try:
    api.together(api.get_project, api.regions, lambda: api.instances("x"), lambda: api.network("default"))
except Exception as error:
    assert type(error).__name__ == "ApiError", repr(error)
assert not [name for name in imported if name.startswith(("google", "requests", "urllib3"))], imported
"""


def test_calls_made_together_do_not_import_together() -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{TOGETHER}"], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
