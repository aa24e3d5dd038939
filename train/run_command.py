"""Build the command that runs a program on a host, and ends it when the connection ends.

A POSIX shell runs the program: it starts in a millisecond, and every host has one.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

# It has no single quotes, backslashes, exclamation marks, or newlines, so that any login shell, including fish and
# csh, passes it on unchanged. sshd makes the shell the leader of a session and process group, so its process ID is
# that of the group, and is not reused while the group has a process.
_SCRIPT = " ".join(
    (
        # The program has no input. Messages of the shell, such as "Killed", are not output of the program.
        "exec 3<&0 4>&2 </dev/null 2>/dev/null;",
        "trap : TERM HUP INT;",  # the shell ends after the program
        # The end of the input is the end of the connection, or of the shell; in the latter case, nothing is ended.
        "( while read -r line; do :; done; kill -0 $$ || exit; trap : TERM; kill -TERM -$$;",
        "for second in 1 2 3 4 5; do kill -0 $$ || break; sleep 1; done; kill -KILL -$$ ) <&3 >/dev/null 4>&- &",
        "exec 3<&-;",
        'fail() { printf "%s: %s" "$1" "$2" >&4; echo >&4; exit $3; };',
        "case $1 in",
        '*/*) if [ -e "$1" ]; then if [ -f "$1" ] && [ -x "$1" ]; then :; else fail "$1" "Permission denied" 126;',
        "fi; fi;; esac;",
        'if command -v "$1" >/dev/null; then ( exec "$@" ) 2>&4 4>&-; exit; fi;',
        'fail "$1" "command not found" 127',
    )
)


def run_command(program: Sequence[str]) -> str:
    """Return the shell command that runs a program on a host.

    Its exit code is that of the program, or 128 and the number of the signal that ended it. When the connection ends,
    the processes of the program receive SIGTERM, and SIGKILL up to 5 seconds later.

    Args:
        program: The program and its arguments, which reach it unchanged.
    """
    return " ".join(["exec", "sh", "-c", *map(shlex.quote, (_SCRIPT, "sh", *program))])
