"""Boot images."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.emulator.catalog.entries import entry, numeric_id

Json = dict[str, Any]


_DEEP_LEARNING = "deeplearning-platform-release"
_LOGIN_SCRIPT = """\
echo "======================================"
echo "Welcome to the Google Deep Learning VM"
echo "======================================"
export LD_LIBRARY_PATH=/usr/local/cuda/lib64:/usr/local/nccl2/lib:/usr/local/cuda/extras/CUPTI/lib64
"""


@dataclass(frozen=True)
class Image:
    """A boot image.

    Attributes:
        project: The project that owns it.
        family: ``debian-12``.
        name: ``debian-12-bookworm-v20261014``.
        disk_gb: Smallest disk it fits on.
        driver: Kernel modules of NVIDIA's driver: ``open``, which need a Turing GPU or a newer one, or
            ``proprietary``; empty: none.
        arm: It is for Arm processors.
        gvnic: It has a driver for gVNIC.
        cloud_init: It has cloud-init, which replaces host keys at the first boot, and prints them on the console.
        python: Version of its Python, which has neither ensurepip, pip, conda, nor headers.
        number: Its id; empty: derived from its path.
        files: Directory of the files on it, as a guest saved them; None: only those that all guests have.
    """

    project: str
    family: str
    name: str
    disk_gb: int
    driver: str = ""
    arm: bool = False
    gvnic: bool = True
    cloud_init: bool = True
    python: str = "3.12"
    number: str = ""
    files: Path | None = None

    @property
    def is_managed(self) -> bool:
        """Return whether its Python is marked as managed by apt: Debian 12 and Ubuntu 23.04 began with it."""
        return tuple(map(int, self.python.split("."))) >= (3, 11)

    @property
    def login_script(self) -> str:
        """Return its file in /etc/profile.d, with what login shells print and set; empty: it has none."""
        return _LOGIN_SCRIPT if self.project == _DEEP_LEARNING else ""

    @property
    def path(self) -> str:
        """``projects/debian-cloud/global/images/…``."""
        return f"projects/{self.project}/global/images/{self.name}"

    @property
    def architecture(self) -> str:
        """``X86_64`` or ``ARM64``."""
        return "ARM64" if self.arm else "X86_64"

    @property
    def id(self) -> str:
        """Return its numeric id."""
        return self.number or numeric_id(self.path)


_PYTHON = {"2404": "3.12", "2204": "3.10"}


IMAGES = (
    *(
        Image(
            *(_DEEP_LEARNING, f"{stem}-ubuntu-{release}-nvidia-580", f"{stem}-ubuntu-{release}-nvidia-580-v20261016"),
            *(50, "open"),
            python=_PYTHON[release],
        )
        for stem in ("common-cu129", "pytorch-2-9-cu129")
        for release in _PYTHON
    ),
    Image("gpu-images", "ubuntu-2204-nvidia-535", "ubuntu-2204-nvidia-535-v1", 20, "proprietary", python="3.10"),
    Image("debian-cloud", "debian-12", "debian-12-bookworm-v20261014", 10, cloud_init=False, python="3.11"),
    Image("debian-cloud", "debian-13", "debian-13-trixie-v20261014", 10, cloud_init=False, python="3.13"),
    Image("ubuntu-os-cloud", "ubuntu-2404-lts-amd64", "ubuntu-2404-noble-amd64-v20261012", 10),
    Image("ubuntu-os-cloud", "ubuntu-2404-lts-arm64", "ubuntu-2404-noble-arm64-v20261012", 10, arm=True),
    Image("old-cloud", "old", "old-v20180101", 10, gvnic=False),
    Image("ubuntu-os-cloud", "ubuntu-2204-lts", "ubuntu-2204-jammy-v20261012", 10, python="3.10"),
)


_IMAGE_PATH = re.compile(r"projects/([^/]+)/(?:global|zones/[^/]+)/(images|images/family|imageFamilyViews)/([^/]+)")


def find_image(source: str) -> Image | None:
    """Return the image for a path from ``projects/`` on: by name, by family, or by family as a zone sees it."""
    match = _IMAGE_PATH.fullmatch(source)
    if not match:
        return None
    project, where, name = match.groups()
    for image in IMAGES:
        if (image.project, image.name if where == "images" else image.family) == (project, name):
            return image
    return None


def image_body(root: str, image: Image) -> Json:
    """Return an Image; `root` is the URL of the API."""
    return {
        **entry("image", image.name),
        "family": image.family,
        "status": "READY",
        "sourceType": "RAW",
        "architecture": image.architecture,
        "archiveSizeBytes": "1073741824",
        "diskSizeGb": str(image.disk_gb),
        "guestOsFeatures": [
            {"type": feature}
            for feature in ("UEFI_COMPATIBLE", "VIRTIO_SCSI_MULTIQUEUE", *(("GVNIC",) if image.gvnic else ()))
        ],
        "labelFingerprint": "42WmSpB8rSM=",
        "selfLink": f"{root}/{image.path}",
    }
