#!/bin/sh
# Startup script of fleet's instances: power off at the time in the metadata item fleet-stop-at (seconds since the
# epoch; 0: never), and publish the time that is in force as the guest attribute fleet/stop-at. It runs as root and
# needs neither SSH nor the computer that made the instance.

fetch() {
    curl -sf -m 5 --noproxy '*' -H 'Metadata-Flavor: Google' "$@"
}

watch() {
    base=http://${GCE_METADATA_HOST:-metadata.google.internal}/computeMetadata/v1/instance
    at=0
    while :; do
        found=$(fetch "$base/attributes/fleet-stop-at") || found=
        case $found in
        '' | *[!0-9]* | "$at") ;;
        *) fetch -X PUT --data "$found" "$base/guest-attributes/fleet/stop-at" >/dev/null && at=$found ;;
        esac
        if [ "$at" -gt 0 ] && [ "$(date +%s)" -ge "$at" ]; then
            shutdown -P now
        fi
        sleep 5
    done
}

watch </dev/null >/dev/null 2>&1 &
