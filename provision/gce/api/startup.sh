#!/bin/sh
# Startup script of fleet's instances. It runs as root at each boot, while sshd answers, and needs neither SSH nor the
# computer that made the instance.
#
# 1. Power off at the time in the metadata item fleet-stop-at (seconds since the epoch; 0: never), and publish the time
#    that is in force as the guest attribute fleet/stop-at.
# 2. Prevent unattended upgrades, which hold the locks of apt and replace the loaded driver; let apt-get wait for those
#    that run already; keep shared memory of users after their last logout.
# 3. Mount the Local SSDs at /mnt/localssd, where all users can write; format them if they have no file system. Several
#    disks become one array if mdadm is installed and all are blank; otherwise only the first one is used. The result is
#    stored like that of a script of step 4, with the name local-ssd.
# 4. Run the item fleet-startup-script at each boot and fleet-setup once per content, also if they change later. For each
#    script, DIRECTORY/SHA256 has its exit code and DIRECTORY/SHA256.log its output. A script that failed runs
#    again if the file /run/fleet/again/SHA256 appears.
# 5. Restart if the file /run/fleet/again/restart appears: an upgrade replaced the driver.
# 6. Power off after the number of seconds in the item fleet-idle-timeout without a job and without a login. A job is the
#    file /run/fleet/jobs/PID of its agent, which may wait in the queue.
# 7. If the item fleet-image appears, remove what belongs to this instance alone, so that its disk can become an image,
#    and confirm it as the guest attribute fleet/image.

export HOME="${HOME:-/root}" DEBIAN_FRONTEND=noninteractive
base=http://${GCE_METADATA_HOST:-metadata.google.internal}/computeMetadata/v1/instance
each_boot=/run/fleet/scripts once=/var/lib/fleet/scripts again=/run/fleet/again jobs=/run/fleet/jobs
local_ssd=/mnt/localssd changes=/run/fleet/changes

fetch() {
    curl -sf -m 5 --noproxy '*' -H 'Metadata-Flavor: Google' "$@"
}

# Wait until a metadata item changes after the request that returned $etag (0: return at once), or until the time is
# over. The metadata server answers when something has changed, so that no pause is needed.
await_change() { # SECONDS
    headers=$(fetch -m $(($1 + 10)) -D - -o /dev/null \
        "$base/attributes/?recursive=true&wait_for_change=true&timeout_sec=$1&last_etag=$etag") || headers=
    etag=$(printf '%s\n' "$headers" | tr -d '\r' | sed -n 's/^[Ee][Tt]ag: *//p')
    if [ -z "$etag" ]; then
        etag=0
        sleep 5
    fi
}

watch_stop_at() {
    at=0 published=0 etag=0
    while :; do
        found=$(fetch "$base/attributes/fleet-stop-at") || found=
        # Arithmetic with other texts would end the shell, and the instance would run on.
        case $found in '' | *[!0-9]* | 0?* | ????????????*) ;; *) at=$found ;; esac
        if [ "$at" != "$published" ]; then
            fetch -X PUT --data "$at" "$base/guest-attributes/fleet/stop-at" >/dev/null && published=$at
        fi
        left=$((at - $(date +%s)))
        if [ "$at" -gt 0 ] && [ "$left" -le 0 ]; then
            shutdown -P now
        fi
        if [ "$at" != "$published" ] || { [ "$at" -gt 0 ] && [ "$left" -lt 5 ]; }; then
            sleep 1
        elif [ "$at" -gt 0 ] && [ "$left" -lt 60 ]; then
            await_change "$left"
        else
            await_change 60
        fi
    done
}

is_in_use() {
    for file in "$jobs"/*; do
        [ -e "$file" ] || continue
        kill -0 "${file##*/}" 2>/dev/null && return
        rm -f "$file"
    done
    pgrep -f '^sshd(-session)?: [^ ]*@' >/dev/null
}

watch_idle() {
    timeout=0 used=$(date +%s) etag=0
    while :; do
        # Without a timeout, only the item can change. A shell cannot wait for the end of a job or of a login.
        if [ "$timeout" -eq 0 ]; then await_change 60; else sleep 5; fi
        now=$(date +%s)
        found=$(fetch "$base/attributes/fleet-idle-timeout") || found=
        case $found in '' | *[!0-9]*) ;; *) timeout=$found ;; esac
        if [ "$timeout" -eq 0 ] || is_in_use; then
            used=$now
        elif [ $((now - used)) -ge "$timeout" ]; then
            shutdown -P now
        fi
    done
}

configure() {
    systemctl stop apt-daily.timer apt-daily-upgrade.timer
    systemctl mask apt-daily.timer apt-daily-upgrade.timer apt-daily.service apt-daily-upgrade.service
    if [ -d /etc/apt/apt.conf.d ]; then
        echo 'DPkg::Lock::Timeout "600";' >/etc/apt/apt.conf.d/99fleet
    fi
    mkdir -p /etc/systemd/logind.conf.d
    printf '[Login]\nRemoveIPC=no\n' >/etc/systemd/logind.conf.d/fleet.conf
    systemctl kill -s HUP systemd-logind
}

upgrading() {
    systemctl show -p ActiveState --value apt-daily.service apt-daily-upgrade.service 2>/dev/null | grep -q activating
}

is_done() { # DIRECTORY NAME; a step that failed is not done if it is requested again
    [ -e "$1/$2" ] || return
    [ -e "$again/$2" ] || return 0
    [ "$(cat "$1/$2")" = 0 ] || rm -f "$1/$2"
    rm -f "$again/$2"
    [ -e "$1/$2" ]
}

has_content() { # DEVICE...
    for probed; do
        blkid -p "$probed" >/dev/null
        [ $? = 2 ] || return 0
    done
    return 1
}

array_of() { # DISK
    lsblk -nrpo NAME,TYPE "$1" 2>/dev/null | sed -n 's/ raid0$//p'
}

mount_local_ssds() {
    mountpoint -q "$local_ssd" && return
    # shellcheck disable=SC2046 # these names have no spaces
    set -- $(find /dev/disk/by-id/ -name 'google-local-nvme-ssd-*' ! -name '*-part*' | sort -V)
    if [ $# = 0 ]; then
        echo 'this host has no Local SSD'
        return 1
    fi
    device=$1
    if [ $# -gt 1 ]; then
        # After a restart of the host, udev may have assembled the array, under another name.
        [ -n "$(array_of "$1")" ] || mdadm --assemble --scan
        device=$(array_of "$1")
        if [ -z "$device" ]; then
            device=$1
            if ! has_content "$@" && mdadm --create /dev/md/localssd --run --level=0 --raid-devices=$# "$@"; then
                device=/dev/md/localssd
            fi
        fi
    fi
    has_content "$device" || mke2fs -q -F -t ext4 -m 0 "$device" || return
    mkdir -p "$local_ssd"
    mount -o discard "$device" "$local_ssd" || return
    chmod 1777 "$local_ssd"
}

prepare_local_ssds() {
    is_done "$each_boot" local-ssd && return
    result=$each_boot/local-ssd
    mount_local_ssds >"$result.log" 2>&1
    echo $? >"$result.new"
    mv "$result.new" "$result"
}

run() { # ITEM DIRECTORY
    script=$2/$1
    fetch -o "$script.new" "$base/attributes/$1" || return
    digest=$(sha256sum <"$script.new")
    digest=${digest%% *}
    is_done "$2" "$digest" && return
    waited=0
    while [ "$waited" -lt 600 ] && upgrading; do
        sleep 1
        waited=$((waited + 1))
    done
    mv "$script.new" "$script"
    chmod 700 "$script"
    (cd / && "$script") </dev/null >"$2/$digest.log" 2>&1
    echo $? >"$2/$digest.new"
    mv "$2/$digest.new" "$2/$digest"
    tail -n 100 "$2/$digest.log"
}

run_all() {
    prepare_local_ssds
    run fleet-startup-script "$each_boot"
    run fleet-setup "$once"
}

seal() {
    found=$(fetch "$base/attributes/fleet-image") || return
    [ "$found" != "$sealed" ] || return
    for home in /root /home/*; do
        rm -rf "$home"/.ssh "$home"/.*_history "$home"/.cache
        for path in "$home"/.fleet/* "$home"/.fleet/.[!.]*; do
            case $path in
            */venvs | */pip | */agent) ;;
            *) rm -rf "$path" ;;
            esac
        done
    done
    rm -f "$once"/*.log "$once"/*.new "$once"/fleet-*
    cloud-init clean --logs >/dev/null 2>&1
    find /var/log -type f -delete
    : >/etc/machine-id
    sync
    fetch -X PUT --data "$found" "$base/guest-attributes/fleet/image" >/dev/null && sealed=$found
}

is_requested() {
    for file in "$again"/*; do
        [ -e "$file" ] && return
    done
    return 1
}

report_changes() {
    etag=0
    while :; do
        await_change 60
        # The reader may have given up in this moment, which would end the shell.
        until (echo >"$changes"); do sleep 1; done
    done
}

# The agent requests a repetition by a file. The images have no program that waits for files, so these are looked for
# every 5 seconds; metadata items are read when they change.
watch_scripts() {
    sealed=
    mkfifo -m 600 "$changes"
    report_changes &
    while :; do
        if [ -p "$changes" ]; then timeout 5 cat "$changes" >/dev/null; else sleep 5; fi
        changed=$?
        if [ -e "$again/restart" ]; then
            rm "$again/restart"
            shutdown -r now
        fi
        if [ "$changed" = 0 ] || is_requested; then
            run_all
            seal
        fi
    done
}

watch_stop_at </dev/null >/dev/null 2>&1 &
configure </dev/null >/dev/null 2>&1
mkdir -p "$each_boot" "$once" "$again" "$jobs"
chmod 1777 "$again" "$jobs"
watch_idle </dev/null >/dev/null 2>&1 &
run_all
watch_scripts </dev/null >/dev/null 2>&1 &
