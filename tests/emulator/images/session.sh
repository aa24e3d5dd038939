#!/bin/sh
# Called by PAM when a session begins or ends. Like systemd-logind, it deletes the shared memory of a user at the last
# logout, unless RemoveIPC=no was in force when logind read its configuration.
PATH=/usr/sbin:/usr/bin:/sbin:/bin
sessions=/run/emulator/sessions/$PAM_USER
case $PAM_TYPE in
open_session)
    mkdir -p "$sessions"
    touch "$sessions/$PPID"
    ;;
close_session)
    rm -f "$sessions/$PPID"
    if rmdir "$sessions" 2>/dev/null && [ "$PAM_USER" != root ] && ! [ -e /run/emulator/keep-ipc ]; then
        find /dev/shm -mindepth 1 -user "$PAM_USER" -delete
    fi
    ;;
esac
exit 0
