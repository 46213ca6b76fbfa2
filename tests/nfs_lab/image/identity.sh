#!/bin/sh
# Who this machine is: number $1 where it goes on from the snapshot, else lab.id= on the kernel's command line. 1 is the server.
id=${1:-}
if [ -z "$id" ]; then
    for word in $(cat /proc/cmdline); do case $word in lab.id=*) id=${word#*=} ;; esac; done
    modprobe -a virtio_pci virtio_net virtio_console virtio_rng virtio_blk # nobody waits for udev
fi
name=node$((id - 1))
[ "$id" != 1 ] || name=server
hostname "$name"
tries=0
while [ ! -e /sys/class/net/eth0 ] && [ $tries -lt 300 ]; do
    sleep 0.1
    tries=$((tries + 1))
done
ip link set lo up
ip link set eth0 down
ip addr flush dev eth0
ip link set eth0 address "52:54:00:77:00:$(printf %02x "$id")"
ip addr add "10.77.0.$id/24" dev eth0
ip link set eth0 up
if [ -n "${1:-}" ]; then # machines of one snapshot share neither boot id nor machine id
    cat /proc/sys/kernel/random/uuid >/run/boot_id
    mount --bind /run/boot_id /proc/sys/kernel/random/boot_id
    printf '%032x\n' "$id" >/run/machine-id
    mount --bind /run/machine-id /etc/machine-id
fi
