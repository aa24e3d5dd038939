#!/bin/sh
# A stand-in for Google's program: `google_metadata_script_runner startup` runs the startup script of the metadata.
if [ "$*" != startup ]; then
    echo "usage: google_metadata_script_runner startup" >&2
    exit 2
fi
script=$(mktemp)
curl -sf --noproxy '*' -H 'Metadata-Flavor: Google' -o "$script" \
    "http://$GCE_METADATA_HOST/computeMetadata/v1/instance/attributes/startup-script"
chmod 700 "$script"
exec "$script"
