"""Test the tree of the processes of a task."""

from __future__ import annotations

import os
import subprocess

from train.agent.host.processes import ProcessTree, descendants, list_children, list_processes


def test_a_process_tree_follows_its_processes() -> None:
    tree = ProcessTree(os.getpid())
    before = set(tree.read())
    for _ in range(2):
        with subprocess.Popen(
            ["/bin/sh", "-c", "sleep 60 & echo; read line; kill $!"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as shell:
            assert shell.stdout is not None
            shell.stdout.readline()
            started = tree.read()
            assert shell.pid in started
            assert len(started.keys() - before) == 2
            assert started.keys() == descendants(os.getpid(), list_processes())
        assert shell.pid not in tree.read()


def test_the_kernel_lists_the_children_of_a_process() -> None:
    with subprocess.Popen(["sleep", "600"]) as child:
        children = list_children()
        assert children is None or child.pid in children  # an old kernel
        child.kill()
    assert child.pid not in (list_children() or [])
