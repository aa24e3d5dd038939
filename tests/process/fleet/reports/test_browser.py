"""The page of a report in headless Chromium, at the width of a phone."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from fleet.reports.page import render
from tests.unit.fleet.reports.records import job, measures

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

OUTER = """<body><iframe src="page.html" style="width: 390px; height: 900px; border: 0"></iframe><script>
onload = () => {
  const page = frames[0].document.documentElement;
  const svg = frames[0].document.querySelector("figure svg").getBoundingClientRect();
  const requests = frames[0].performance.getEntriesByType("resource").length;
  const overflow = page.scrollWidth - page.clientWidth;
  document.body.innerText = `overflow ${overflow} chart ${Math.round(svg.width)} requests ${requests}`;
};
</script>"""


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
def test_a_page_fits_a_phone_and_loads_nothing(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(render(job(), measures()), encoding="utf-8")
    (tmp_path / "outer.html").write_text(OUTER)
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files"]
    options += ["--enable-logging=stderr", f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom"]
    answer = subprocess.run(
        [str(CHROMIUM), *options, (tmp_path / "outer.html").as_uri()],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    result = re.search(r"overflow (\d+) chart (\d+) requests (\d+)", answer.stdout)
    assert result is not None, answer.stderr[-2000:]
    overflow, chart, requests = map(int, result.groups())
    assert overflow == 0
    assert 300 < chart < 390
    assert requests == 0
    assert ":CONSOLE" not in answer.stderr
