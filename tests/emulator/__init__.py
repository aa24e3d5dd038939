"""Compute Engine's REST API on this computer, as far as fleet and gcloud use it."""

from __future__ import annotations

from tests.emulator.server import Emulator

__all__ = ["Emulator"]
