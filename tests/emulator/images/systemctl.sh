#!/bin/sh
# A stand-in for systemctl: masks units as systemd does, and shows the states of units in /run/emulator/units. Other
# commands that fleet uses have no effect.
case $1 in
mask)
    shift
    for unit; do
        ln -sf /dev/null "/etc/systemd/system/$unit"
    done
    ;;
show) # -p ActiveState --value UNIT ...
    shift 3
    for unit; do
        cat "/run/emulator/units/$unit" 2>/dev/null || echo inactive
    done
    ;;
kill) # -s HUP systemd-logind: it reads its configuration again
    rm -f /run/emulator/keep-ipc
    if grep -qs '^RemoveIPC=no' /etc/systemd/logind.conf.d/*.conf; then
        touch /run/emulator/keep-ipc
    fi
    ;;
reboot) exec /usr/local/bin/reboot ;;
stop) ;;
*)
    echo "Unknown command verb '$1'." >&2
    exit 1
    ;;
esac
