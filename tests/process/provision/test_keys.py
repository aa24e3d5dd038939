from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from provision.keys import fingerprint, generate_ed25519


def test_openssh_reads_the_pair_as_one_key(tmp_path: Path) -> None:
    pair = generate_ed25519("fleet demo")
    private = tmp_path / "id"
    private.touch(0o600)
    private.write_text(pair.private)
    derived = subprocess.run(
        ["ssh-keygen", "-y", "-P", "", "-f", private], capture_output=True, text=True, check=True
    )
    assert derived.stdout.split()[:2] == pair.public.split()[:2]
    assert pair.public.startswith("ssh-ed25519 ")
    assert pair.public.endswith(" fleet demo")


def test_every_pair_is_different() -> None:
    assert generate_ed25519("same").public != generate_ed25519("same").public


def test_the_private_key_is_not_in_the_repr(tmp_path: Path) -> None:
    pair = generate_ed25519("x")
    assert "PRIVATE" in pair.private
    assert pair.private not in repr(pair)
    assert "PRIVATE" not in repr(pair)


@pytest.mark.parametrize("comment", ["two\nlines", "nul\0", "tab\t"])
def test_a_comment_is_one_line(comment: str) -> None:
    with pytest.raises(ValueError, match="single line"):
        generate_ed25519(comment)


def test_the_fingerprint_is_openssh_s(tmp_path: Path) -> None:
    pair = generate_ed25519("x")
    public = tmp_path / "id.pub"
    public.write_text(pair.public + "\n")
    done = subprocess.run(["ssh-keygen", "-l", "-f", public], capture_output=True, text=True, check=True)
    assert done.stdout.split()[1] == fingerprint(pair.public)
    assert fingerprint(pair.public + "\n") == fingerprint(pair.public)


@pytest.mark.parametrize("text", ["", "ssh-ed25519", "ssh-ed25519 &&&&", "ssh-ed25519 AAA"])
def test_fingerprint_refuses_text_that_is_not_a_key(text: str) -> None:
    with pytest.raises(ValueError, match=r"not an OpenSSH public key; expected e\.g\. 'ssh-ed25519 AAAA…'"):
        fingerprint(text)
