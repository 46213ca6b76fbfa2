#!/bin/bash
# Make what every machine of the lab boots from, of Debian's packages: kernel, initrd.img, root.ext4 in the directory $1;
# linux.uml and usermode.so for machines that are processes of the host, where there is a C compiler.
# Needs root, and a Debian host whose apt works: kernel and packages are those of its release. TRACE=1 says each step.
set -euo pipefail
PS4="+\${SECONDS} "
[ -z "${TRACE:-}" ] || set -x
here=$(cd "$(dirname "$0")" && pwd)
out=$1
say() { echo "build: $* (${SECONDS} s)" >&2; }
refuse() {
    say "$*"
    exit 69
}

[ "$(id -u)" = 0 ] || refuse 'needs root: mmdebstrap and chroot do'
release=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
case $release in bookworm | trixie) ;; *) refuse "needs Debian 12 or 13, this is ${release:-something else}" ;; esac
mkdir -p "$out"
cd "$out"
# One at a time: what another one still has mounted below root/ (its /dev/shm is this machine's) must never be removed.
exec 8>build.lock
flock 8
[ ! -e root.ext4 ] || exit 0
grep -qF " $PWD/root/" /proc/self/mountinfo && refuse "something is mounted below $PWD/root: umount it first"
sweep() { rm -rf --one-file-system fetched root initrd; }

need=()
for package in qemu-system-x86 qemu-utils mmdebstrap e2fsprogs cpio; do
    dpkg -s "$package" >/dev/null 2>&1 || need+=("$package")
done
if [ ${#need[@]} != 0 ]; then
    DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends -o DPkg::Lock::Timeout=600 \
        "${need[@]}" >apt.log 2>&1 || refuse "cannot install ${need[*]}: see $out/apt.log; apt-get update first?"
fi

# 1. Debian's kernel for virtual machines: unpacked, not installed
kernel=$(apt-cache depends linux-image-cloud-amd64 | awk '/Depends:/{print $2; exit}')
[ -n "$kernel" ] || refuse 'apt knows no linux-image-cloud-amd64: apt-get update first'
sweep
mkdir fetched
chmod 777 fetched
(
    cd fetched
    apt-get download "$kernel" busybox-static user-mode-linux >../apt.log 2>&1
    dpkg -x "$kernel"_*.deb kernel
    dpkg -x user-mode-linux_*.deb usermode
    dpkg -x busybox-static_*.deb busybox
)
cp fetched/kernel/boot/vmlinuz-* kernel
rm -f linux.uml usermode.so
if command -v cc >/dev/null; then
    # Without AVX and lazy binding: that kernel's stacks have no room for what they would save there.
    cc -O2 -mno-avx -shared -fPIC -Wl,-z,now -o usermode.so "$here/usermode.c"
    cp fetched/usermode/usr/bin/linux.uml linux.uml
fi
say "kernel $kernel"

# 2. a root file system with systemd, the kernel's NFS tools and chrony; python3 is for the lab's agent
# In a mount namespace of its own: what it mounts is mounted nowhere else, and gone with it.
unshare --mount --propagation private mmdebstrap --variant=minbase --skip=cleanup/apt/lists \
    --include=systemd,systemd-sysv,dbus,udev,kmod,iproute2,nftables,nfs-common,nfs-kernel-server,chrony,python3,procps,netbase \
    --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/doc/*' \
    --dpkgopt='path-exclude=/usr/share/locale/*' "$release" root >mmdebstrap.log 2>&1 ||
    refuse "mmdebstrap failed: $(tail -3 mmdebstrap.log)"
rm -rf root/var/lib/apt/lists/* root/var/cache/apt/*
mkdir -p root/usr/lib/modules
cp -a fetched/kernel/lib/modules/* root/usr/lib/modules/ 2>/dev/null || cp -a fetched/kernel/usr/lib/modules/* root/usr/lib/modules/
(
    cd root/usr/lib/modules/*/kernel
    rm -rf drivers/infiniband drivers/gpu drivers/scsi arch/x86/kvm arch/x86/crypto sound drivers/net/ethernet drivers/hv
)
cp -a fetched/usermode/usr/lib/uml/modules/* root/usr/lib/modules/
rm -rf root/usr/lib/modules/*/kernel/{drivers/usb,drivers/media,drivers/staging,sound}
for modules in root/usr/lib/modules/*; do chroot root depmod "$(basename "$modules")"; done
say 'root file system'

# 3. the lab's own: agent, identity, the command; and only those units that a test needs, for under emulation each costs
install -m755 "$here/agent.py" root/usr/local/sbin/lab-agent
install -m755 "$here/usermode-init.sh" root/usr/local/sbin/usermode-init
install -m755 "$here/identity.sh" root/usr/local/sbin/lab-identity
install -m755 "$here/tenure.sh" root/usr/bin/tenure
install -m644 "$here"/*.service root/etc/systemd/system/
install -m644 "$here/exports" root/etc/exports
install -m644 "$here/nfs.conf" root/etc/nfs.conf.d/lab.conf
units=root/etc/systemd/system
mkdir -p $units/{sysinit,multi-user}.target.wants root/opt/tenure root/etc/tenure root/srv/tenure root/disk
ln -sf ../lab-identity.service $units/sysinit.target.wants/
ln -sf ../lab-agent.service $units/multi-user.target.wants/
ln -sf /lib/systemd/system/multi-user.target $units/default.target
for unit in nfs-server.service nfs-blkmap.service rpcbind.service rpcbind.socket nfs-idmapd.service rpc-gssd.service \
    rpc-svcgssd.service systemd-timesyncd.service chrony.service apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer \
    e2scrub_all.timer e2scrub_reap.service fstrim.timer nfs-client.target remote-fs.target nftables.service; do
    rm -f $units/*.wants/$unit
done
for unit in systemd-hwdb-update systemd-binfmt systemd-pstore systemd-update-utmp systemd-random-seed ldconfig \
    systemd-journal-catalog-update systemd-logind systemd-user-sessions systemd-udev-trigger modprobe@configfs modprobe@dm_mod \
    modprobe@drm modprobe@fuse modprobe@loop systemd-firstboot systemd-sysusers systemd-update-done \
    systemd-machine-id-commit e2scrub_reap getty@tty1 serial-getty@ttyS0 serial-getty@hvc0; do
    ln -sf /dev/null $units/$unit.service
done
for unit in dev-hugepages.mount dev-mqueue.mount sys-kernel-debug.mount sys-fs-fuse-connections.mount; do
    ln -sf /dev/null $units/$unit
done
printf '127.0.0.1 localhost\n10.77.0.1 server\n' >root/etc/hosts
for number in $(seq 2 9); do echo "10.77.0.$number node$((number - 1))" >>root/etc/hosts; done
echo 0123456789abcdef0123456789abcdef >root/etc/machine-id
echo machine >root/etc/hostname
echo '/dev/vda / ext4 rw,noatime 0 0' >root/etc/fstab
rm -f root/etc/resolv.conf

# 4. an initramfs of busybox and virtio-blk. virtio_ring comes before virtio: modules are loaded in this order.
mkdir -p initrd/{bin,dev,proc,root}
cp fetched/busybox/bin/busybox initrd/bin/ 2>/dev/null || cp fetched/busybox/usr/bin/busybox initrd/bin/
modules=(virtio_ring virtio virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci virtio_blk)
{
    echo '#!/bin/busybox sh'
    for module in "${modules[@]}"; do
        found=$(find fetched/kernel -name "$module.ko*" | head -1)
        [ -n "$found" ] || continue # built in
        case $found in *.xz) xz -dc "$found" >"initrd/$module.ko" ;; *) cp "$found" "initrd/$module.ko" ;; esac
        echo "/bin/busybox insmod /$module.ko"
    done
    echo '/bin/busybox mount -t devtmpfs dev /dev'
    echo '/bin/busybox mount -t ext4 -o noatime /dev/vda /root'
    echo 'exec /bin/busybox switch_root /root /sbin/init'
} >initrd/init
chmod +x initrd/init
(cd initrd && find . | cpio -o -H newc --quiet) >initrd.img

# 5. one file of it all; no loop device is needed
rm -f root.ext4 root.new
truncate -s 1500M root.new
mke2fs -q -F -t ext4 -O ^has_journal -E lazy_itable_init=1,nodiscard -d root root.new
mv root.new root.ext4
sweep
say "ready in $out"
