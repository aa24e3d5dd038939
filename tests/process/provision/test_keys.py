from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from provision.keys import fingerprint, generate_ed25519


def test_openssh_reads_the_pair_as_one_key_with_the_same_fingerprint(tmp_path: Path) -> None:
    pair = generate_ed25519("fleet demo")
    assert pair.public != generate_ed25519("fleet demo").public
    assert "PRIVATE" not in repr(pair)
    private = tmp_path / "id"
    private.touch(0o600)
    private.write_text(pair.private)
    read = ["ssh-keygen", "-y", "-P", "", "-f", str(private)]
    derived = subprocess.run(read, capture_output=True, text=True, check=True).stdout
    assert (derived.split()[:2], pair.public.split(" ", 2)[2]) == (pair.public.split()[:2], "fleet demo")
    private.write_text(pair.public + "\n")
    done = subprocess.run(["ssh-keygen", "-l", "-f", str(private)], capture_output=True, text=True, check=True)
    assert done.stdout.split()[1] == fingerprint(pair.public) == fingerprint(pair.public + "\n")


@pytest.mark.parametrize("comment", ["two\nlines", "nul\0"])
def test_a_comment_is_one_line(comment: str) -> None:
    with pytest.raises(ValueError, match="single line"):
        generate_ed25519(comment)


@pytest.mark.parametrize("text", ["", "ssh-ed25519", "ssh-ed25519 &&&&"])
def test_fingerprint_refuses_text_that_is_not_a_key(text: str) -> None:
    with pytest.raises(ValueError, match=r"not an OpenSSH public key; expected e\.g\. 'ssh-ed25519 AAAA…'"):
        fingerprint(text)
