# The mounts that all guests have; the working directory is that of the guest's files. Changes of /etc are in memory.
mount -t tmpfs tmpfs memory
mkdir memory/upper memory/work memory/bin
mount -t overlay overlay -o lowerdir=/etc,upperdir=memory/upper,workdir=memory/work /etc
mkdir -p /etc/apt/apt.conf.d /etc/profile.d /etc/systemd/system /etc/ssl/certs
cp etc/image.sh /etc/profile.d/image.sh
touch /etc/machine-id
cat etc/authority.pem >>/etc/ssl/certs/ca-certificates.crt
for name in passwd group shadow machine-id hosts hostname ssh pam.d; do
    mount --bind "etc/$name" "/etc/$name"
done
mount --bind boot_id /proc/sys/kernel/random/boot_id
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
# A copy of bash with the set-user-ID bit, with which the stand-in for sudo becomes root; the group is google-sudoers.
install -g 60000 -m 4750 /bin/bash memory/bin/emulator-root
mount -t overlay -o lowerdir=bin:memory/bin:/usr/local/bin overlay /usr/local/bin
# Programs of this computer that a guest must not use: GPUs that are not its own, and the power of this computer.
for path in /usr/bin/nvidia-smi /bin/nvidia-smi /usr/sbin/shutdown /sbin/shutdown /usr/bin/systemctl /bin/systemctl \
    /usr/bin/apt-get /usr/bin/dpkg /usr/bin/loginctl /usr/bin/sudo /usr/sbin/reboot /sbin/reboot; do
    if [ -e "$path" ] && ! [ -L "$path" ] && ! [ -L "${path%/*}" ]; then
        mount --bind /dev/null "$path"
    fi
done
if [ -e /usr/bin/python3 ]; then
    mount --bind bin/python3 "$(readlink -f /usr/bin/python3)"
fi
if [ -e local-ssds ]; then # loop devices show them; images have no mdadm
    mkdir -p /dev/disk
    mount --bind local-ssds /dev/disk
    mount -t tmpfs tmpfs /mnt
fi
