from __future__ import annotations

import subprocess
import sys


def test_only_the_live_console_imports_rich() -> None:
    code = (
        "import sys, io, fleet.console, fleet.console.status_table, fleet.console.errors\n"
        "fleet.console.make_sink('auto', stdout=sys.stdout, stderr=sys.stderr)\n"
        "sys.exit(any(name.split('.')[0] == 'rich' for name in sys.modules))\n"
    )
    assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, check=False).returncode == 0
