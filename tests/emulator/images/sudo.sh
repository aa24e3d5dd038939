#!/bin/sh
# A stand-in for sudo without a password. Only users of the group google-sudoers can execute emulator-root, a copy of
# bash with the set-user-ID bit; as its effective user, setpriv becomes root.
while :; do
    case $1 in
    -n | -E | -H) shift ;;
    --)
        shift
        break
        ;;
    -*)
        echo "sudo: invalid option $1" >&2
        exit 1
        ;;
    *) break ;;
    esac
done
if ! [ -x /usr/local/bin/emulator-root ]; then
    echo "sudo: a password is required" >&2
    exit 1
fi
path=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
set -- env -i HOME=/root USER=root "GCE_METADATA_HOST=$GCE_METADATA_HOST" "PATH=$path" "$@"
exec /usr/local/bin/emulator-root -p -c 'exec setpriv --reuid=0 --regid=0 --clear-groups "$@"' sudo "$@"
